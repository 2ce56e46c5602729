"""Neural utilities that encode each string once (extra `mbrace[neural]`).

`checkpoint` reads COMET's layout, `pretrained` finds transformers, `encoder` turns strings into vectors, `head` scores
`pairs` of vectors, and `scorer` does so in a race; `comet`, `embedding`, `learned` and `referenceless` are made of
these parts. `bertscore` keeps a vector per token (`token_vectors`, `matching`). `mbrace.training.metric` trains a
learned metric.
"""
