"""FILM (Gupta 2022): sentences by a language model over the words of an update."""
