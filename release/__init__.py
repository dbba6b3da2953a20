"""For a release: the image, built reproducibly by whichever builder is there, what is in it, and mutation testing."""
