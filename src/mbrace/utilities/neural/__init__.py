"""Neural utilities (extra `mbrace[neural]`): COMET checkpoints, sentence embeddings, and the learned metrics we ship.

`checkpoint` reads COMET's layout, `pretrained` finds transformers, `encoder` turns strings into vectors, `head` scores
`pairs` of vectors, `scorer` does so in a race, and `comet`, `embedding` and `learned` are the utilities made of these
parts. `mbrace.training.metric` trains a learned metric.
"""
