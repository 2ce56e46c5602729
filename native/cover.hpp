// An order of texts in which every prefix covers the whole list.
//
// A mean over a few texts is close to the mean over all if the few have the same n-grams as all, with the same frequencies.
// So each next text is the one that brings the average n-gram counts of the prefix closest to those of the whole list
// (kernel herding: Chen, Welling and Smola, 2010). Means over a prefix are then closer to those over all than in a random
// order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "likeness.hpp"

namespace mbrace {

// The indices of all texts, equal ones included, in this order; the first of equally good ones comes first.
inline std::vector<std::int64_t> covering_order(const std::vector<Text>& texts) {
    const std::size_t size = texts.size();
    const std::vector<float> alike = likeness(texts);  // products of n-grams minus their mean over the list
    // If a text is appended, the squared distance between the mean n-grams of prefix and list, times the squared length of
    // the prefix, grows by twice this number.
    std::vector<double> growth(size);
    for (std::size_t i = 0; i < size; ++i) growth[i] = alike[i * size + i] / 2.0;
    std::vector<std::int64_t> left(size), order;
    for (std::size_t i = 0; i < size; ++i) left[i] = static_cast<std::int64_t>(i);
    order.reserve(size);
    while (!left.empty()) {
        const auto best = std::min_element(left.begin(), left.end(), [&](std::int64_t a, std::int64_t b) {
            return growth[static_cast<std::size_t>(a)] < growth[static_cast<std::size_t>(b)];
        });
        const std::int64_t chosen = *best;
        left.erase(best);
        order.push_back(chosen);
        const float* const row = &alike[static_cast<std::size_t>(chosen) * size];
        for (std::size_t i = 0; i < size; ++i) growth[i] += row[i];
    }
    return order;
}

}  // namespace mbrace
