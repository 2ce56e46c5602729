"""Cross-encoders (extra `mbrace[neural]`): utilities that read both sides together, a forward pass for each pair."""
