"""What is made of an `Attention`. Each renderer is a function; none computes attention."""
