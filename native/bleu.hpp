// Sentence BLEU for a table of hypotheses and references.
//
// Every n-gram of tokens, whatever its order, gets a number: (number of all tokens but the last, number of the last). A
// hypothesis is a list of its n-grams with their counts. For the hypotheses of a request these lists are inverted into a
// list of hypotheses per n-gram. A reference then adds the smaller of both counts to every hypothesis that shares an
// n-gram with it, and touches no other.
#pragma once

#include <cstdint>
#include <vector>

#include "bleu_formula.hpp"
#include "items.hpp"
#include "score.hpp"
#include "table.hpp"
#include "tokens.hpp"

namespace mbrace {

struct CountedGram {
    std::uint32_t gram;
    std::uint32_t count;
};

// The n-grams of one text that an index knows, by order, each once.
struct BagOfGrams {
    std::vector<CountedGram> grams[MAX_ORDERS];
    std::size_t length = 0;  // tokens
};

// The working memory in which a thread reads texts.
struct BleuReader {
    Tokens tokens;
    std::vector<std::uint32_t> word_numbers, gram_numbers;
    std::vector<std::uint32_t> entries;  // [gram]: its index in the bag plus one; 0: not in it
    BagOfGrams bag;
};

class BleuIndex {
  public:
    BleuIndex(Tokenizer tokenizer, int order) : tokenizer_(tokenizer), order_(order) {}

    std::size_t size() const { return lengths_.size(); }
    int order() const { return order_; }
    std::size_t grams() const { return grams_; }  // numbers are below this
    std::size_t length(std::size_t row) const { return lengths_[row]; }
    std::size_t bytes() const {
        return words_.bytes() + longer_.bytes() + 4 * letters_.size() + sizeof(CountedGram) * counted_.size() +
               sizeof(Spelling) * spellings_.size() + 8 * (lengths_.size() + ends_.size());
    }

    void add(const Text& hypothesis, BleuReader& reader);

    // Reads a text into the reader's bag. Changes nothing else, so several threads may do so at once.
    void look_up(const Text& text, BleuReader& reader) const;

    const CountedGram* begin(std::size_t row) const { return counted_.data() + (row ? ends_[row - 1] : 0); }
    const CountedGram* end(std::size_t row) const { return counted_.data() + ends_[row]; }

  private:
    struct Spelling {
        std::uint32_t begin, length;  // range of letters_
        std::uint32_t gram;
    };

    template <bool Insert>
    void read(const Text& text, BleuReader& reader);
    void count_grams(BleuReader& reader, std::size_t count, std::vector<CountedGram>& bag) const;
    template <bool Insert>
    std::uint32_t word(const Tokens& tokens, std::size_t which);
    template <bool Insert>
    std::uint32_t longer(std::uint32_t prefix, std::uint32_t last);

    Tokenizer tokenizer_;
    int order_;
    std::uint32_t grams_ = 1;  // 0 is none
    Table<std::uint32_t> words_, longer_;
    std::vector<Spelling> spellings_;
    std::vector<std::uint32_t> letters_;
    std::vector<CountedGram> counted_;  // of all hypotheses, one after another
    std::vector<std::size_t> lengths_, ends_;
};

// New references of one sentence against some of its hypotheses.
struct BleuAsk {
    const BleuIndex* index;
    const std::int64_t* rows;
    std::size_t row_count;
    const Text* references;
    std::size_t reference_count;
    float* scores;  // [row_count][reference_count]
};

// Adds hypotheses to indexes, which must differ from one another.
void add_hypotheses(const std::vector<BleuIndex*>& indexes, const std::vector<const std::vector<Text>*>& texts,
                    int threads);

// Returns the share of the time that went into reading references (the rest is per pair).
double score_bleu_window(const std::vector<BleuAsk>& asks, const BleuFormula& formula, int threads);

// statistics[pair] = tokens of the hypothesis, of the reference, then matches and n-grams of the hypothesis by order.
void bleu_statistics(Tokenizer tokenizer, int order, const std::vector<Text>& hypotheses,
                     const std::vector<Text>& references, int threads, std::int64_t* statistics);

}  // namespace mbrace
