// The steps of a race with chrF, one after another, where a sentence's pseudo-references are a list: what race.py does step by
// step for any utility, without going back to Python in between.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "resamples.hpp"
#include "score.hpp"
#include "tally.hpp"

namespace mbrace {

// What all races of a call share.
struct RacePlan {
    std::vector<std::size_t> sizes;                               // of the pseudo-references, step by step, growing
    std::unordered_map<std::size_t, const Resamples*> resamples;  // by the number of draws; none: nothing is pruned
    std::size_t nbest, enough;                                    // a race is over when `enough` are left after a step
    double max_losing_wins, max_regret;
    Formula formula;
    const Variant* variant;
};

// The race of one sentence.
struct WholeRace {
    struct Step {
        std::size_t draws, survivors, calls, pairs;
    };

    Tally* tally;
    const Index* index;                    // of its hypotheses
    const Text* drawn;                     // its pseudo-references, in the order in which they are drawn
    const Text* scored;                    // the same as chrF reads them, such as in lower case
    std::size_t listed;                    // how many they are
    std::vector<Step> steps;               // that it took
    std::vector<double> means;             // expected utilities of those left
    std::vector<std::size_t> first_drawn;  // indexes of pseudo-references that are the first of their kind
    Clock::duration deciding{0};

    void run(const RacePlan& plan, Worker& worker);
};

}  // namespace mbrace
