"""The arithmetic of vectors in C, one pass each; where it could not be compiled, NumPy makes the same bytes."""
