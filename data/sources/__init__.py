"""Sources of images, which ``./run.sh prepare`` packs: one module each, registered in `configs.registry.SOURCES`."""
