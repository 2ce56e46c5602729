"""Neural utilities that encode each string once (extra `mbrace[neural]`).

`pretrained` finds and reads models, `checkpoint` COMET's layout; `encoder` turns strings into vectors (`tokens`,
`packed`), `head` scores pairs of vectors, `scorer` does so in a race: `comet` and `embedding` are made of these.
`bertscore` keeps a vector per token (`matching`).
"""
