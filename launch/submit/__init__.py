"""./run.sh submit: job scripts for every scheduler, and what they ask around their ranks."""
