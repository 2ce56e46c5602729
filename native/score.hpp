// Indexes and scores of a whole window of sentences, shared out over threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "count.hpp"
#include "index.hpp"
#include "reference.hpp"
#include "survivors.hpp"

namespace mbrace {

using Clock = std::chrono::steady_clock;
inline double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// A request: the survivors of one sentence against its new references.
struct Ask {
    const Index* index;
    const std::int64_t* survivors;
    std::size_t survivor_count;
    const Text* references;
    std::size_t reference_count;
    float* scores;  // [survivor_count][reference_count]
};

constexpr std::size_t TILE = 8;  // references whose scores are written to the table together

// The memory of one thread.
struct Worker {
    TextBuffers buffers;
    IndexedReference references[TILE];
    Survivors survivors;
    const Ask* ask = nullptr;  // the request that `survivors` belongs to
    Vector<float> scores;      // [block][TILE][rows]
    Clock::duration encoding{0}, counting{0};
};

// The workers of one call. They are reused by the next call: making them would take long compared with a step of a race.
class Workers {
  public:
    explicit Workers(int threads);
    ~Workers();

    // Call after work that did not fail; a worker whose work failed may be in any state and is not reused.
    void keep_for_reuse();

    Worker& operator[](int index);
    auto begin() { return workers_.begin(); }
    auto end() { return workers_.end(); }

  private:
    std::vector<std::unique_ptr<Worker>> workers_;
};

// One index for the hypotheses of each sentence.
std::vector<std::shared_ptr<Index>> build_indexes(const Options& options,
                                                  const std::vector<const std::vector<Text>*>& sentences, int threads);

// At the end of a call: keeps the workers for the next one, and returns the share of the time that went into reading
// and numbering references.
double finish_call(Workers& workers);

// Writes the scores of references `first` to `end` of a request. Its survivors are chosen if the worker's last request was
// another one.
void score_references(Worker& worker, const Ask& ask, std::size_t first, std::size_t end, const Formula& formula,
                      const Variant& variant);

// Writes the scores of every request. Returns the share of the time that went into reading and numbering references (the
// rest is spent per pair).
double score_window(const std::vector<Ask>& asks, const Formula& formula, const Variant& variant, int threads);

// Aligned pairs: writes scores[i] of (hypotheses[i], references[i]), and totals[order][3]: the n-grams of the hypotheses
// (where the reference has any), of the references, and their matches: the sufficient statistics of the corpus score.
void score_pairs(const Options& options, const Formula& formula, const std::vector<Text>& hypotheses,
                 const std::vector<Text>& references, const Variant& variant, int threads, float* scores,
                 std::int64_t* totals);

}  // namespace mbrace
