"""The image of a release: built reproducibly by whichever builder is there, with a list of what is in it."""
