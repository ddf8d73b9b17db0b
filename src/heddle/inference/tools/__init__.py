"""Tools: what a request may ask for, how models write calls, grammars that force calls, parsers that find them."""
