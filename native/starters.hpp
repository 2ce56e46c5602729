// The hypotheses that race from the start: a few that say much about all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbrace {

// Up to `count` of `size` hypotheses in the order of their choice: the first, then in turn the one of which those before leave
// most unexplained, and the one that explains most of what they leave unexplained of all. `likeness`, (size, size), is their
// covariance, to which each adds `noise` of its own.
std::vector<std::int64_t> starters(const std::vector<float>& likeness, std::size_t size, std::size_t count, double noise);

}  // namespace mbrace
