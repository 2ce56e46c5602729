// How alike the texts of one list are: which n-grams of characters they share.
//
// Hypotheses of one sentence share most of their n-grams, and those in which they differ come in bundles: all n-grams
// around a word that some of them have. So n-grams that occur in the same texts are counted together, as one *bundle*.
//
// Example: of "a cat", "a dog" and "a cow", the n-gram " a " is in all three and says nothing. "cat" and "at " are in the
// first alone, "a c" and " a c" in the first and the third: two bundles, {1} and {1, 3}.
#include "likeness.hpp"

#include <algorithm>
#include <utility>

#include "pool.hpp"
#include "table.hpp"

namespace mbrace {
namespace {

// A random-looking number for each number (SplitMix64). `mix` would not do: sums of its values, as below, may be equal.
std::uint64_t scramble(std::uint64_t number) {
    number += 0x9E3779B97F4A7C15ull;
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9ull;
    number = (number ^ number >> 27) * 0x94D049BB133111EBull;
    return number ^ number >> 31;
}

class Bundles {
  public:
    static constexpr std::size_t SHORTEST = 3, LONGEST = 5;  // n-grams, in code points
    static constexpr std::size_t COMPARED = 1000;            // code points of a text that are looked at

    explicit Bundles(const std::vector<Text>& texts) : size_(texts.size()), grams_of_(texts.size()) {
        for (std::size_t text = 0; text < size_; ++text) read(texts[text], static_cast<std::uint32_t>(text));
        const std::vector<std::uint32_t> bundles = bundle();
        for (std::size_t text = 0; text < size_; ++text) {
            for (const std::uint32_t gram : grams_of_[text]) {
                if (bundles[gram] != NONE) members[bundles[gram]].push_back(static_cast<std::uint32_t>(text));
            }
        }
    }

    std::vector<std::vector<std::uint32_t>> members;  // of each bundle, the texts in which its n-grams occur, growing
    std::vector<std::uint32_t> weights;               // and how many n-grams it has

  private:
    static constexpr std::uint32_t NONE = ~0u;

    struct Gram {
        std::uint64_t texts = 0;  // a sum of random numbers that stands for the set of texts it occurs in
        std::uint32_t count = 0, last = NONE;
    };

    struct Longest {
        std::uint32_t five, four, three;  // n-grams that begin at the same code point
    };

    // The n-grams of a text with a space before and after it. Where the longest one that begins at a code point is known from
    // before, so are the shorter ones.
    void read(const Text& text, std::uint32_t number) {
        const std::size_t length = std::min(text.length, COMPARED);
        points_.assign(length + 2, ' ');
        with_points(text, [&](const auto* points) { std::copy_n(points, length, points_.begin() + 1); });
        grams_of_[number].reserve(points_.size() * (LONGEST - SHORTEST + 1));
        for (std::size_t begin = 0; begin + SHORTEST <= points_.size(); ++begin) {
            const std::uint32_t* at = &points_[begin];
            const std::uint64_t three = at[0] | std::uint64_t{at[1]} << 21 | std::uint64_t{at[2]} << 42;
            if (begin + LONGEST <= points_.size()) {
                const Longest found = longest(three, at[3], at[4]);
                if (!note(found.five, number)) continue;  // it was in this text before, and so were the others
                note(found.four, number);
                note(found.three, number);
            } else {
                if (begin + SHORTEST < points_.size()) note(gram_of(fours_, four(three, at[3])), number);
                note(gram_of(threes_, three), number);
            }
        }
    }

    // Keys of n-grams have 63 bits: exact ones for three code points (of 21 bits each), random-looking ones for more.
    static std::uint64_t four(std::uint64_t three, std::uint64_t fourth) { return scramble(scramble(three) + fourth) >> 1; }

    Longest longest(std::uint64_t three, std::uint64_t fourth, std::uint64_t fifth) {
        const std::uint64_t key = scramble(scramble(three) + (fourth | fifth << 21)) >> 1;
        if (const Longest* known = fives_.find(key)) return *known;
        const std::uint32_t prefix = gram_of(threes_, three);
        return *fives_.insert(key, {add_gram(), gram_of(fours_, four(three, fourth)), prefix});
    }

    std::uint32_t gram_of(Table<std::uint32_t>& known, std::uint64_t key) {
        const std::uint32_t* found = known.find(key);
        return found ? *found : *known.insert(key, add_gram());
    }

    std::uint32_t add_gram() {
        in_texts_.emplace_back();
        return static_cast<std::uint32_t>(in_texts_.size() - 1);
    }

    // Returns whether the n-gram is in the text for the first time.
    bool note(std::uint32_t gram, std::uint32_t text) {
        Gram& found = in_texts_[gram];
        if (found.last == text) return false;
        found.last = text;
        found.texts += scramble(text);
        ++found.count;
        grams_of_[text].push_back(gram);
        return true;
    }

    // For the first n-gram of each bundle, the bundle's number.
    std::vector<std::uint32_t> bundle() {
        std::vector<std::uint32_t> firsts(in_texts_.size(), NONE);
        Table<std::uint32_t> known;
        for (std::size_t gram = 0; gram < in_texts_.size(); ++gram) {
            if (in_texts_[gram].count == size_) continue;  // in all texts
            const std::uint64_t key = scramble(in_texts_[gram].texts) >> 1;
            if (const std::uint32_t* found = known.find(key)) {
                ++weights[*found];
                continue;
            }
            known.insert(key, firsts[gram] = static_cast<std::uint32_t>(weights.size()));
            weights.push_back(1);
            members.emplace_back().reserve(in_texts_[gram].count);
        }
        return firsts;
    }

    std::size_t size_;
    std::vector<std::uint32_t> points_;
    Table<Longest> fives_;
    Table<std::uint32_t> fours_, threes_;
    std::vector<Gram> in_texts_;
    std::vector<std::vector<std::uint32_t>> grams_of_;  // [text]: its n-grams, each once
};

}  // namespace

std::vector<float> likeness(const std::vector<Text>& texts) {
    const std::size_t size = texts.size();
    const Bundles bundles(texts);
    Vector<std::uint32_t> shared(size * size);  // n-grams, where row <= column
    std::vector<std::uint32_t> others;
    std::vector<double> of_row(size);
    for (std::size_t b = 0; b < bundles.weights.size(); ++b) {
        const std::vector<std::uint32_t>* texts_with = &bundles.members[b];
        if (2 * texts_with->size() > size) {  // lacking the same n-grams counts like having them: the shorter list
            others.clear();
            for (std::uint32_t text = 0, next = 0; text < size; ++text) {
                if (next < texts_with->size() && (*texts_with)[next] == text)
                    ++next;
                else
                    others.push_back(text);
            }
            texts_with = &others;
        }
        for (std::size_t i = 0; i < texts_with->size(); ++i) {
            const std::uint32_t row = (*texts_with)[i];
            of_row[row] += bundles.weights[b] * static_cast<double>(texts_with->size());
            for (std::size_t j = i; j < texts_with->size(); ++j)
                shared[row * size + (*texts_with)[j]] += bundles.weights[b];
        }
    }
    double total = 0, own = 0;
    for (const double sum : of_row) total += sum;
    const double count = static_cast<double>(size);
    const auto centred = [&](std::size_t row, std::size_t column) {
        return shared[row * size + column] + (total / (count * count) - (of_row[row] + of_row[column]) / count);
    };
    for (std::size_t row = 0; row < size; ++row) own += centred(row, row);
    std::vector<float> found(size * size);
    if (!(own > 0)) return found;
    for (std::size_t row = 0; row < size; ++row) {
        float* const of = &found[row * size];
        for (std::size_t column = row; column < size; ++column)
            of[column] = static_cast<float>(centred(row, column) * count / own);
    }
    constexpr std::size_t BLOCK = 16;  // rows that stay in the cache while a part of them is mirrored
    for (std::size_t first = 0; first < size; first += BLOCK) {
        for (std::size_t row = first; row < size; ++row) {
            for (std::size_t column = first; column < std::min(row, first + BLOCK); ++column) {
                found[row * size + column] = found[column * size + row];
            }
        }
    }
    return found;
}

// A mean over a few texts is close to the mean over all if the few have the same n-grams as all, with the same frequencies.
// So each next text is the one that brings the average n-gram counts of the prefix closest to those of the whole list
// (kernel herding: Chen, Welling and Smola, 2010). Means over a prefix are then closer to those over all than in a random
// order.
std::vector<std::int64_t> covering_order(const std::vector<Text>& texts) {
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
