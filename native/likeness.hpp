// How alike the texts of one list are, and an order of them in which every prefix covers the whole list.
#pragma once

#include <cstdint>
#include <vector>

#include "text.hpp"

namespace mbrace {

// (texts, texts): of each two texts, the sum over n-grams of (occurs in the one - share of texts with it) times the same for the
// other, so that it is positive where they differ from the rest in the same way; 1 on average for a text with itself. All 0
// where no n-gram tells any two texts apart.
std::vector<float> likeness(const std::vector<Text>& texts);

// The indices of all texts, equal ones included, in an order in which every prefix covers the whole list; the first of equally good ones comes first.
std::vector<std::int64_t> covering_order(const std::vector<Text>& texts);

}  // namespace mbrace
