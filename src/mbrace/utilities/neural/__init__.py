"""Neural utilities (extra `mbrace[neural]`): COMET checkpoints, sentence embeddings, and the learned metric we ship.

`checkpoint` reads COMET's layout, `pretrained` finds transformers, `encoder` turns strings into vectors, `head` and
`cosine` turn pairs of vectors into scores, `scorer` plays them in a race, and `comet`, `embedding` and `learned` are
the utilities made of these parts. `metric_data` and `train_metric` make the learned metric.
"""
