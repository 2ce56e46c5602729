"""Neural utilities that encode each string once (extra `mbrace[neural]`).

`pretrained` finds and reads models, `checkpoint` COMET's layout. `batches` is the stream of batches of all networks.
`encoder` turns strings into vectors (`packed` without padding), `head` scores pairs of vectors, `scorer` does so in a
race: `comet` and `embedding` are made of these. `bertscore` keeps a vector per token.
"""
