"""Where attention comes from. Each source is a function from a batch to an `Attention`."""
