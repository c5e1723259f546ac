"""What is made of an `AttentionResult`. Each renderer is a function; none computes attention."""
