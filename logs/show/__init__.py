"""Shows runs to people: report pages, image files, progress in the terminal."""
