"""Cross-encoders (extra `mbrace[neural]`): they read hypothesis and reference together, a forward pass per pair.

`batches` tokenises each string once, joins rows and streams them through a network, `scorer` plays that in a race. The
utilities are `xcomet` (UniTE, XCOMET, CometKiwi), `metricx` (on the network in `mt5`) and `bleurt`.
"""
