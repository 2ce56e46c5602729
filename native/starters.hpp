// The hypotheses that race from the start: a few that say much about all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbrace {

// Up to `count` of `size` hypotheses, in the order in which they are chosen: the first, then by turns the one that those
// before it explain least, and the one that explains most of what those before it leave unexplained of all. `likeness`,
// (size, size), is their covariance, and `noise` is added to the variance of each.
std::vector<std::int64_t> starters(const std::vector<float>& likeness, std::size_t size, std::size_t count, double noise);

}  // namespace mbrace
