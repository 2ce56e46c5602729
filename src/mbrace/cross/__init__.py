"""Cross-encoders (extra `mbrace[neural]`): they read hypothesis and reference together, a forward pass per pair.

`pieces` holds each string's token ids, `batches` joins them into rows and streams the rows through a network, `scorer`
plays that in a race. The utilities are `unified` (UniTE, XCOMET with its `spans`, CometKiwi; `unified_network`),
`metricx` (on the network in `mt5`) and `bleurt` (`bleurt_network`, `bleurt_tokens`).
"""
