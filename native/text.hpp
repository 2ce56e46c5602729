// Texts as chrF needs them: code points with or without whitespace, and sacreBLEU's words as ranges of code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace mbrace {

// A string in one of Python's three layouts: 1, 2 or 4 bytes per code point (lone surrogates are code points too).
struct Text {
    const void* data;
    std::size_t length;
    int kind;  // bytes per code point
};

// Calls `function` with a pointer to the code points of a text, in the layout that they have.
template <class Function>
auto with_points(const Text& text, const Function& function) {
    if (text.kind == 1) return function(static_cast<const std::uint8_t*>(text.data));
    if (text.kind == 2) return function(static_cast<const std::uint16_t*>(text.data));
    return function(static_cast<const std::uint32_t*>(text.data));
}

// The layout that Python has for these code points, and a copy of them in it.
int kind_of(const std::uint32_t* points, std::size_t length);
void narrow(const std::uint32_t* points, std::size_t length, int kind, void* copy);

constexpr std::uint32_t END = 0x1FFFFF;  // after the last code point of a text; the largest code point is 0x10FFFF

// Whitespace as in Python's str.split() and str.isspace(), and Python's string.punctuation.
constexpr std::uint8_t SPACE = 1, PUNCTUATION = 2;

struct Latin {
    std::uint8_t kinds[256] = {};

    constexpr Latin() {
        for (int c = 0x09; c <= 0x0D; ++c) kinds[c] = SPACE;
        for (int c = 0x1C; c <= 0x20; ++c) kinds[c] = SPACE;
        kinds[0x85] = kinds[0xA0] = SPACE;
        for (int c = 0x21; c <= 0x7E; ++c) {
            const bool letter = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
            if (!letter) kinds[c] = PUNCTUATION;
        }
    }
};
constexpr Latin LATIN;

inline bool is_space(std::uint32_t c) {
    if (c < 256) return LATIN.kinds[c] == SPACE;
    return c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

inline bool is_punctuation(std::uint32_t c) { return c < 256 && LATIN.kinds[c] == PUNCTUATION; }

struct Word {
    std::uint32_t begin, end;  // range of Segment::points
};

// One string split into code points and words. The object is reused from string to string, so that allocations are rare.
struct Segment {
    static constexpr std::size_t PADDING = 8;

    std::vector<std::uint32_t> points;  // `length` code points, then PADDING times END
    std::vector<std::uint8_t> bytes;    // the same for a string of one-byte code points (`narrow`)
    std::vector<Word> words;
    std::size_t length = 0;
    bool narrow = false;

    void read(const Text& text, bool keep_whitespace, bool want_words) {
        const std::size_t room = text.length + PADDING;
        if (points.size() < room) points.resize(room);
        if (edges_.size() < room) edges_.resize(room);
        if (bytes.size() < room) bytes.resize(room);
        narrow = text.kind == 1;
        const std::size_t edges =
            with_points(text, [&](const auto* units) { return scan(units, text.length, keep_whitespace); });
        for (std::size_t i = 0; i < PADDING; ++i) points[length + i] = END;
        words.clear();
        if (want_words) split(edges);
    }

  private:
    // Writes code points to `points` and the positions where words begin and end to `edges_`; returns the number of the
    // latter. No branch depends on the text.
    template <class Unit>
    std::size_t scan(const Unit* units, std::size_t count, bool keep_whitespace) {
        std::uint32_t* out = points.data();
        std::uint32_t* edge = edges_.data();
        std::size_t at = 0;
        bool in_word = false;
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t c = units[i];
            const bool letter = !is_space(c);
            *edge = static_cast<std::uint32_t>(at);
            edge += letter != in_word;
            in_word = letter;
            out[at] = c;
            if constexpr (sizeof(Unit) == 1) bytes[at] = static_cast<std::uint8_t>(c);
            at += letter | keep_whitespace;
        }
        *edge = static_cast<std::uint32_t>(at);
        edge += in_word;
        length = at;
        return edge - edges_.data();
    }

    // sacreBLEU separates one punctuation mark from the end of a word, else one from its beginning: "(hi)" is "(hi", ")".
    void split(std::size_t edges) {
        for (std::size_t i = 0; i < edges; i += 2) {
            const std::uint32_t begin = edges_[i], end = edges_[i + 1];
            if (end - begin > 1 && is_punctuation(points[end - 1])) {
                words.push_back({begin, end - 1});
                words.push_back({end - 1, end});
            } else if (end - begin > 1 && is_punctuation(points[begin])) {
                words.push_back({begin, begin + 1});
                words.push_back({begin + 1, end});
            } else {
                words.push_back({begin, end});
            }
        }
    }

    std::vector<std::uint32_t> edges_;
};

}  // namespace mbrace
