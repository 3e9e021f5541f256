"""Set-up, and starting runs: the environment, the ranks of one machine, job scripts, studies.

launch imports those parts of train that need no framework, and nothing of data. It starts everything else as a command,
see `configs.programs`; the ranks of the doctor, which are such a command, import more.
"""
