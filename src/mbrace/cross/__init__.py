"""Cross-encoders (extra `mbrace[neural]`): they read hypothesis and reference together, a forward pass per pair.

`scorer` numbers strings and scores the pairs of a race. The utilities are `xcomet` (UniTE, XCOMET, CometKiwi),
`metricx` (on the network in `mt5`) and `bleurt`.
"""
