"""The command line: flags become objects, objects become calls."""
