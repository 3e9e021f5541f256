"""Set-up, and starting runs: the environment, the ranks of one machine, job scripts, studies.

launch imports neither train nor data. It starts their modules as commands; see `configs.programs`.
"""
