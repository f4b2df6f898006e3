"""Names and phrases of the page and the terminal."""
