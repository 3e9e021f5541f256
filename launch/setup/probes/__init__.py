"""Programs that set-up starts by their path, in other interpreters and processes. They import nothing of ours."""
