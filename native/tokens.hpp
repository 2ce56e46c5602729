// Text as BLEU sees it: the tokens of sacreBLEU's 13a, char and none, as ranges of code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text.hpp"

namespace mbrace {

enum class Tokenizer { none, characters, mteval13a };

// Reused from string to string, so that nothing is allocated in the steady state.
class Tokens {
  public:
    std::vector<std::uint32_t> points;
    std::vector<Word> words;  // ranges of `points`

    void read(const Text& text, Tokenizer tokenizer) {
        with_points(text, [&](const auto* units) { load(units, text.length); });
        if (tokenizer == Tokenizer::mteval13a) mteval13a();
        words.clear();
        split(tokenizer == Tokenizer::characters);
    }

  private:
    template <class Unit>
    void load(const Unit* units, std::size_t length) {
        while (length > 0 && is_space(units[length - 1])) --length;  // sacreBLEU strips the end before it tokenizes
        points.assign(units, units + length);
    }

    // sacreBLEU's tokenizer_13a.py and tokenizer_re.py, a pass for each of their replacements: where a regular expression
    // takes two characters, the next match begins after both, and a single pass would not show that.
    void mteval13a() {
        bool markup = false, newline = false, entity = false;
        for (const std::uint32_t c : points) {
            markup |= c == '<';
            newline |= c == '\n';
            entity |= c == '&';
        }
        if (markup) replace("<skipped>", "");
        if (newline) replace("-\n", ""), replace("\n", " ");
        if (entity) replace("&quot;", "\""), replace("&amp;", "&"), replace("&lt;", "<"), replace("&gt;", ">");

        written_.assign(1, ' ');
        for (const std::uint32_t c : points) {
            if (is_own_token(c)) {
                written_.insert(written_.end(), {' ', c, ' '});
            } else {
                written_.push_back(c);
            }
        }
        written_.push_back(' ');
        points.swap(written_);

        const auto is_digit = [](std::uint32_t c) { return c >= '0' && c <= '9'; };
        const auto is_period = [](std::uint32_t c) { return c == '.' || c == ','; };
        pass([&](std::uint32_t a, std::uint32_t b) { return !is_digit(a) && is_period(b); }, false);
        pass([&](std::uint32_t a, std::uint32_t b) { return is_period(a) && !is_digit(b); }, true);
        pass([&](std::uint32_t a, std::uint32_t b) { return is_digit(a) && b == '-'; }, false);
    }

    // 13a puts spaces around these: the class [\{-\~\[-\` -\&\(-\+\:-\@\/], the space and ASCII punctuation but for ' , - .
    static bool is_own_token(std::uint32_t c) {
        return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
               (c >= ':' && c <= '@') || c == '/';
    }

    // Every pair that matches, from the left and without overlap: spaces around its first or its second character.
    template <class Matches>
    void pass(Matches matches, bool around_first) {
        written_.clear();
        const std::size_t length = points.size();
        std::size_t i = 0;
        while (i < length) {
            const std::uint32_t first = points[i++];
            if (i < length && matches(first, points[i])) {
                const std::uint32_t second = points[i++];
                if (around_first) {
                    written_.insert(written_.end(), {' ', first, ' ', second});
                } else {
                    written_.insert(written_.end(), {first, ' ', second, ' '});
                }
            } else {
                written_.push_back(first);
            }
        }
        points.swap(written_);
    }

    // Python's str.replace.
    void replace(std::string_view old, std::string_view by) {
        written_.clear();
        std::size_t i = 0;
        while (i < points.size()) {
            std::size_t same = 0;
            while (same < old.size() && i + same < points.size() &&
                   points[i + same] == static_cast<unsigned char>(old[same])) {
                ++same;
            }
            if (same == old.size()) {
                written_.insert(written_.end(), by.begin(), by.end());
                i += same;
            } else {
                written_.push_back(points[i++]);
            }
        }
        points.swap(written_);
    }

    void split(bool single) {
        const auto length = static_cast<std::uint32_t>(points.size());
        for (std::uint32_t i = 0; i < length;) {
            if (is_space(points[i])) {
                ++i;
                continue;
            }
            const std::uint32_t begin = i++;
            while (!single && i < length && !is_space(points[i])) ++i;
            words.push_back({begin, i});
        }
    }

    std::vector<std::uint32_t> written_;
};

}  // namespace mbrace
