"""The forms in which a data set lies on a disk, one object each: packed by the program, or in place as it was found."""
