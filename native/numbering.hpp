// Every n-gram of characters and words gets a number, exactly: see items.hpp, characters.hpp and words.hpp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "characters.hpp"
#include "items.hpp"
#include "text.hpp"
#include "words.hpp"

namespace mbrace {

class Numbering {
  public:
    // `length`: of the longest text; `texts`: their number. They give a guess of the number of distinct n-grams, so that
    // tables rarely have to grow.
    Numbering(const Options& options, std::size_t length, std::size_t texts)
        : options_(options), items_(options.orders(), distinct(length, texts)),
          characters_(options.char_order, distinct(length, texts)), words_(options.word_order, options.char_order) {}

    const Options& options() const { return options_; }
    std::size_t items(int order) const { return items_.count(order); }
    const Item* next(int order) const { return items_.next(order); }
    Item next_or_new(int order, Item item) { return items_.next_or_new(order, item); }

    // For hypotheses: n-grams that are new get a number.
    void number(const Segment& segment, Grams& grams) { run<true>(segment, grams); }

    // For references: n-grams that are not there get item 0, and nothing is changed.
    void look_up(const Segment& segment, Grams& grams) const { const_cast<Numbering*>(this)->run<false>(segment, grams); }

    std::size_t bytes() const { return items_.bytes() + characters_.bytes() + words_.bytes(); }

  private:
    static std::size_t distinct(std::size_t length, std::size_t texts) {
        return length + length * std::min<std::size_t>(texts, 256) / 16;
    }

    template <bool Insert>
    void run(const Segment& segment, Grams& grams) {
        if (options_.char_order > 0) characters_.number<Insert>(segment, items_, grams);
        if (options_.word_order > 0) words_.number<Insert>(segment, items_, grams);
    }

    Options options_;
    Items items_;
    Characters characters_;
    Words words_;
};

}  // namespace mbrace
