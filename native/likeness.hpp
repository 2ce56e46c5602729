// How alike the texts of one list are: which n-grams of characters they share.
//
// Hypotheses of one sentence share most of their n-grams, and those in which they differ come in bundles: all n-grams
// around a word that some of them have. So n-grams that occur in the same texts are counted together, as one *bundle*.
//
// Example: of "a cat", "a dog" and "a cow", the n-grams " a " are in all three and say nothing. "cat" and "at " are in the
// first alone, " c" in the first and the third: two bundles, {1} and {1, 3}.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "table.hpp"
#include "text.hpp"

namespace mbrace {

class Bundles {
  public:
    static constexpr std::size_t SHORTEST = 3, LONGEST = 5;  // n-grams, in code points
    static constexpr std::size_t COMPARED = 1000;            // code points of a text that are looked at

    explicit Bundles(const std::vector<Text>& texts) : size_(texts.size()) {
        std::vector<std::vector<std::uint32_t>> grams(size_);
        for (std::size_t text = 0; text < size_; ++text) number(texts[text], text, grams[text]);
        std::vector<std::uint32_t> bundle_of(in_texts_.size());
        bundle(bundle_of);
        std::vector<std::size_t> last(members.size(), size_);
        for (std::size_t text = 0; text < size_; ++text) {
            for (const std::uint32_t gram : grams[text]) {
                const std::uint32_t at = bundle_of[gram];
                if (at == NO_BUNDLE || last[at] == text) continue;
                last[at] = text;
                members[at].push_back(static_cast<std::uint32_t>(text));
            }
        }
    }

    std::vector<std::vector<std::uint32_t>> members;  // of each bundle, the texts in which its n-grams occur
    std::vector<std::uint32_t> weights;               // and how many n-grams it has

  private:
    static constexpr std::uint32_t NO_BUNDLE = ~0u;

    struct Gram {
        std::uint64_t texts = 0;  // a sum of random numbers that stands for the set of texts it occurs in
        std::uint32_t count = 0, last = ~0u;
    };

    // The n-grams of a text with a space before and after it.
    void number(const Text& text, std::size_t position, std::vector<std::uint32_t>& grams) {
        points_.assign(1, ' ');
        for (std::size_t i = 0; i < std::min(text.length, COMPARED); ++i) points_.push_back(code_point(text, i));
        points_.push_back(' ');
        for (std::size_t begin = 0; begin < points_.size(); ++begin) {
            std::uint64_t hash = 0;
            for (std::size_t n = 1; n <= LONGEST && begin + n <= points_.size(); ++n) {
                hash = mix(hash + points_[begin + n - 1] + 1);
                if (n >= SHORTEST) grams.push_back(seen(mix(hash + n) >> 1, static_cast<std::uint32_t>(position)));
            }
        }
    }

    std::uint32_t seen(std::uint64_t key, std::uint32_t text) {
        const std::uint32_t* known = numbers_.find(key);
        const std::uint32_t gram = known ? *known : static_cast<std::uint32_t>(in_texts_.size());
        if (!known) {
            numbers_.insert(key, gram);
            in_texts_.emplace_back();
        }
        Gram& found = in_texts_[gram];
        if (found.last != text) {
            found.last = text;
            found.texts += mix(mix(text + 1) + 1);
            ++found.count;
        }
        return gram;
    }

    void bundle(std::vector<std::uint32_t>& bundle_of) {
        Table<std::uint32_t> known;
        for (std::size_t gram = 0; gram < in_texts_.size(); ++gram) {
            bundle_of[gram] = NO_BUNDLE;
            if (in_texts_[gram].count == size_) continue;  // in all texts
            const std::uint64_t key = mix(in_texts_[gram].texts) >> 1;
            const std::uint32_t* found = known.find(key);
            bundle_of[gram] = found ? *found : static_cast<std::uint32_t>(weights.size());
            if (!found) {
                known.insert(key, bundle_of[gram]);
                weights.push_back(0);
                members.emplace_back();
            }
            ++weights[bundle_of[gram]];
        }
    }

    static std::uint32_t code_point(const Text& text, std::size_t i) {
        if (text.kind == 1) return static_cast<const std::uint8_t*>(text.data)[i];
        if (text.kind == 2) return static_cast<const std::uint16_t*>(text.data)[i];
        return static_cast<const std::uint32_t*>(text.data)[i];
    }

    std::size_t size_;
    std::vector<std::uint32_t> points_;
    Table<std::uint32_t> numbers_;
    std::vector<Gram> in_texts_;
};

// (texts, texts): of each two texts, the sum over n-grams of (occurs in the one - share of texts with it) times the same for the
// other, so that it is positive where they differ from the rest in the same way; 1 on average for a text with itself. All 0
// where no n-gram tells any two texts apart.
inline std::vector<float> likeness(const std::vector<Text>& texts) {
    const std::size_t size = texts.size();
    const Bundles bundles(texts);
    std::vector<double> sums(size * size), of_row(size);
    std::vector<std::uint32_t> others;
    for (std::size_t b = 0; b < bundles.weights.size(); ++b) {
        const std::vector<std::uint32_t>* texts_with = &bundles.members[b];
        if (2 * texts_with->size() > size) {  // not to have n-grams in common is to be alike in the same way
            others.clear();
            for (std::uint32_t text = 0, next = 0; text < size; ++text) {
                if (next < texts_with->size() && (*texts_with)[next] == text)
                    ++next;
                else
                    others.push_back(text);
            }
            texts_with = &others;
        }
        for (const std::uint32_t row : *texts_with) {
            of_row[row] += bundles.weights[b] * static_cast<double>(texts_with->size());
            for (const std::uint32_t column : *texts_with) sums[row * size + column] += bundles.weights[b];
        }
    }
    double total = 0, own = 0;
    for (const double sum : of_row) total += sum;
    const double count = static_cast<double>(size);
    for (std::size_t row = 0; row < size; ++row) {
        for (std::size_t column = 0; column < size; ++column) {
            sums[row * size + column] += total / (count * count) - (of_row[row] + of_row[column]) / count;
        }
        own += sums[row * size + row];
    }
    std::vector<float> found(size * size);
    if (!(own > 0)) return found;
    for (std::size_t i = 0; i < found.size(); ++i) found[i] = static_cast<float>(sums[i] * count / own);
    return found;
}

}  // namespace mbrace
