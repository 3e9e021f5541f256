"""Where images come from before they are packed."""
