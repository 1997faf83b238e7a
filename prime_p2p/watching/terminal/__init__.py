"""The view of a run on a terminal, made with textual."""
