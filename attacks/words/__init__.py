"""The words of an update, and the order that a language model gives them: FILM."""
