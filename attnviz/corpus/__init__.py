"""Measures over a corpus: documents are read, put in batches, run through a source and measured.

`documents` reads, `batches` packs, a `Source` (`sources`) turns a batch into blocks of weights,
`measure_corpus` goes through it all and keeps what it has in a checkpoint.
"""
