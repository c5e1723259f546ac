"""What commands take from a pass: full maps, pooled maps, or a window of them."""
