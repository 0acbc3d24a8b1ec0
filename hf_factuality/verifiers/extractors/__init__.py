"""What finds the claims of a completion and the characters that state them."""
