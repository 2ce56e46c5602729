// Weighted sums of utilities: the exact sum, rounded once. So the order of the utilities changes nothing, and neither does
// adding equal ones together first.
//
// Whole weights (counts of draws) times utilities of similar size: every product is a multiple of the last bit of the
// smallest utility, no sum of them needs more than the 53 bits of a double, and plain addition is exact.
//
// Otherwise every product is split in two: a multiple of a step that is so large that sums of such multiples fit 53 bits,
// and the rest, rounded to a multiple of a second, smaller step, of which the same is true. Again all additions are exact,
// except for the last one, of the two sums. What the second step rounds away is less than 2^-65 of the largest product
// for up to a thousand products. Example with decimals, where numbers have four digits and steps are 1 and 0.001: 12.34567
// is 12 and 0.346, and 0.12345 is 0 and 0.123; the sums 12 and 0.469 are exact, and together 12.47.
//
// A product of two doubles is two doubles, the rounded product and the rest. Utilities in doubles are brought near 1 by a
// power of two first, so that no sum of numbers of any size is too large.
#include "expected_utilities.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "clones.hpp"

namespace mbrace {
namespace {

constexpr int DOUBLE_BITS = 53, FLOAT_BITS = 24;  // of a number's digits, the leading one included
constexpr double MAX_WHOLE_TOTAL = 1 << 24;       // of whole weights: beyond it few sums would be exact

// Weighted means of rows of utilities; the weights are the same for all rows.
class WeightedSum {
  public:
    WeightedSum(const double* weights, std::size_t count)
        : weights_(weights), count_(count), products_(whole_groups(count)) {
        total_ = sum_in_two_steps(std::vector<float>(count, 1.0f).data());
        const auto is_whole = [](double weight) { return weight >= 0 && weight == std::nearbyint(weight); };
        if (std::all_of(weights, weights + count, is_whole) && total_ < MAX_WHOLE_TOTAL) {
            total_bits_ = std::bit_width(static_cast<std::uint32_t>(total_));
        }
    }

    // Whether `mean` is rounded only once, by the division.
    bool is_exact(const float* utilities) const {
        // A utility of exponent e is less than 2^(e+1) and a multiple of 2^(e-23).
        return total_bits_ != 0 && total_bits_ + exponent_range(utilities, count_) + FLOAT_BITS <= DOUBLE_BITS;
    }

    // utilities[0] * weights[0] + utilities[1] * weights[1] + ..., over the total of the weights.
    double mean(const float* utilities) {
        if (total_bits_ == 0) {  // products of floats and doubles would be rounded one by one
            const std::vector<double> doubles(utilities, utilities + count_);
            return mean(doubles.data());
        }
        if (is_exact(utilities)) {
            return plain_sum(utilities, weights_, count_) / total_;
        }
        return sum_in_two_steps(utilities) / total_;
    }

    double mean(const double* utilities) {
        double largest = 0, largest_product = 0;
        for (std::size_t c = 0; c < count_; ++c) largest = std::max(largest, std::abs(utilities[c]));
        if (largest == 0) return 0;
        int exponent;
        std::frexp(largest, &exponent);
        products_.resize(whole_groups(2 * count_));
        for (std::size_t c = 0; c < count_; ++c) {
            const double utility = std::ldexp(utilities[c], -exponent);
            products_[2 * c] = utility * weights_[c];
            products_[2 * c + 1] = std::fma(utility, weights_[c], -products_[2 * c]);
            largest_product = std::max(largest_product, std::abs(products_[2 * c]));
        }
        return std::ldexp(sum_of_products(largest_product, 2 * count_) / total_, exponent);
    }

  private:
    static constexpr std::size_t SUMS = 8;  // side by side, so that additions do not wait for each other
    typedef double Doubles __attribute__((vector_size(SUMS * sizeof(double))));  // compilers vectorise the loop badly

    static std::size_t whole_groups(std::size_t count) { return (count + SUMS - 1) / SUMS * SUMS; }

    double sum_in_two_steps(const float* utilities) {
        return sum_of_products(multiply(utilities, weights_, count_, products_.data()), count_);
    }

    // The sum of `products_`, `count` of them not zero and none larger than `largest`.
    double sum_of_products(double largest, std::size_t count) {
        if (largest == 0) return 0;
        int exponent;
        std::frexp(largest, &exponent);  // largest < 2^exponent
        // Bits that a sum may have more than a product, and one to spare.
        const int growth = std::bit_width(count) + 1;
        // Doubles from 2^e up to 2^(e+1) are multiples of 2^(e-52): adding 1.5 * 2^e, and taking it away, rounds to these.
        return add_up(products_.data(), products_.size(), std::ldexp(1.5, exponent + growth),
                      std::ldexp(1.5, exponent + 2 * growth - (DOUBLE_BITS - 1)));
    }

    // The largest exponent less the smallest, zeros left out.
    MBRACE_CLONES
    static int exponent_range(const float* utilities, std::size_t count) {
        std::uint32_t high = 0, low = ~std::uint32_t{0};
        for (std::size_t c = 0; c < count; ++c) {
            const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(utilities[c]) & 0x7FFFFFFFu;
            high = std::max(high, magnitude);
            low = std::min(low, magnitude - 1);  // a zero becomes the largest number
        }
        const auto exponent = [](std::uint32_t magnitude) { return std::max(static_cast<int>(magnitude >> 23), 1); };
        return high == 0 ? 0 : exponent(high) - exponent(low + 1);
    }

    MBRACE_CLONES
    static double plain_sum(const float* utilities, const double* weights, std::size_t count) {
        double sums[SUMS] = {};
        std::size_t c = 0;
        for (; c + SUMS <= count; c += SUMS) {
            for (std::size_t k = 0; k < SUMS; ++k) sums[k] += static_cast<double>(utilities[c + k]) * weights[c + k];
        }
        for (std::size_t k = 0; c + k < count; ++k) sums[k] += static_cast<double>(utilities[c + k]) * weights[c + k];
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }

    // Writes the products and returns the largest magnitude.
    MBRACE_CLONES
    static double multiply(const float* utilities, const double* weights, std::size_t count, double* products) {
        double largest = 0;
        for (std::size_t c = 0; c < count; ++c) {
            const double product = static_cast<double>(utilities[c]) * weights[c], magnitude = std::abs(product);
            products[c] = product;
            largest = magnitude > largest ? magnitude : largest;
        }
        return largest;
    }

    MBRACE_CLONES
    static double add_up(const double* products, std::size_t count, double round_coarse, double round_fine) {
        Doubles coarse{}, fine{};
        for (std::size_t c = 0; c < count; c += SUMS) {
            Doubles some;
            std::memcpy(&some, products + c, sizeof(some));
            const Doubles multiple = (some + round_coarse) - round_coarse;
            coarse += multiple;
            fine += ((some - multiple) + round_fine) - round_fine;
        }
        double coarse_total = 0, fine_total = 0;
        for (std::size_t k = 0; k < SUMS; ++k) coarse_total += coarse[k], fine_total += fine[k];
        return coarse_total + fine_total;
    }

    const double* weights_;
    std::size_t count_;
    std::vector<double> products_;  // whole groups of SUMS, the last filled up with zeros
    double total_;
    int total_bits_ = 0;  // of the total, if the weights are whole numbers; else 0
};

// A sum of products of doubles of any size, without rounding: a fixed-point number whose last bit is that of the smallest
// product.
class ExactSum {
  public:
    void add(double utility, double weight) {
        int utility_exponent, weight_exponent;
        const auto a = static_cast<std::int64_t>(std::ldexp(std::frexp(utility, &utility_exponent), DOUBLE_BITS));
        const auto b = static_cast<std::int64_t>(std::ldexp(std::frexp(weight, &weight_exponent), DOUBLE_BITS));
        if (a == 0 || b == 0) return;
        const int bit = utility_exponent + weight_exponent - 2 * DOUBLE_BITS - LOWEST;
        Product product(static_cast<std::uint64_t>(a < 0 ? -a : a), static_cast<std::uint64_t>(b));
        std::uint64_t part = product.low << (bit % 32) & 0xFFFFFFFFu;
        product.drop(32 - bit % 32);  // 106 bits, moved by up to 31, are five digits
        for (std::size_t digit = bit / 32;; ++digit) {
            digits_[digit] += a < 0 ? -static_cast<std::int64_t>(part) : static_cast<std::int64_t>(part);
            if (product.low == 0 && product.high == 0) break;
            part = product.low & 0xFFFFFFFFu;
            product.drop(32);
        }
    }

    // This sum over one that is positive, rounded once.
    double over(const ExactSum& other) const {
        auto [sign, dividend] = normalised();
        Digits divisor = other.normalised().second;
        if (sign == 0) return 0;
        const auto is_set = [](std::uint32_t digit) { return digit != 0; };
        const auto zeros = std::min(std::find_if(dividend.begin(), dividend.end(), is_set) - dividend.begin(),
                                    std::find_if(divisor.begin(), divisor.end(), is_set) - divisor.begin());
        dividend.erase(dividend.begin(), dividend.begin() + zeros);
        divisor.erase(divisor.begin(), divisor.begin() + zeros);
        // Bits of the quotient, the highest first, until there are enough to round it.
        const int shift = std::max(0, DOUBLE_BITS + 3 - (bits(dividend) - bits(divisor)));
        Digits rest(divisor.size() + 1, 0);
        std::uint64_t quotient = 0;
        int exponent = -shift;
        for (int bit = bits(dividend) - 1 + shift; bit >= 0; --bit) {
            std::uint32_t carry = bit >= shift ? dividend[(bit - shift) / 32] >> ((bit - shift) % 32) & 1u : 0u;
            for (std::uint32_t& digit : rest) {
                const std::uint32_t next = digit >> 31;
                digit = digit << 1 | carry;
                carry = next;
            }
            const bool one = take(rest, divisor);
            if (quotient >> 62) {  // enough bits: the others only say whether there is a rest
                ++exponent;
                quotient |= one ? 1u : 0u;
            } else {
                quotient = quotient << 1 | (one ? 1u : 0u);
            }
        }
        if (std::any_of(rest.begin(), rest.end(), is_set)) quotient |= 1u;
        return sign * std::ldexp(static_cast<double>(quotient), exponent);  // the one rounding
    }

  private:
    using Digits = std::vector<std::uint32_t>;  // the lowest first

    // The 128 bits of a product of numbers below 2^63, in two halves: not every compiler has such an integer.
    struct Product {
        std::uint64_t low, high;

        Product(std::uint64_t a, std::uint64_t b) {
            const std::uint64_t a_low = a & 0xFFFFFFFFu, a_high = a >> 32, b_low = b & 0xFFFFFFFFu, b_high = b >> 32;
            const std::uint64_t first = a_low * b_low, middle = a_low * b_high + a_high * b_low;
            low = first + (middle << 32);
            high = a_high * b_high + (middle >> 32) + (low < first ? 1 : 0);
        }

        void drop(int bits) {  // the lowest ones, 1 to 32
            low = low >> bits | high << (64 - bits);
            high >>= bits;
        }
    };
    static constexpr int LOWEST = -2 * (1074 + DOUBLE_BITS);  // no product has a lower bit

    static int bits(const Digits& digits) {
        return digits.empty() ? 0 : 32 * static_cast<int>(digits.size()) - std::countl_zero(digits.back());
    }

    // Subtracts `less` if it is not larger; returns whether it was not.
    static bool take(Digits& from, const Digits& less) {
        const auto digit = [&](std::size_t at) { return at < less.size() ? less[at] : 0u; };
        for (std::size_t at = from.size(); at-- > 0;) {
            if (from[at] > digit(at)) break;
            if (from[at] < digit(at)) return false;
        }
        std::int64_t borrow = 0;
        for (std::size_t at = 0; at < from.size(); ++at) {
            borrow += static_cast<std::int64_t>(from[at]) - digit(at);
            from[at] = static_cast<std::uint32_t>(borrow);
            borrow >>= 32;
        }
        return true;
    }

    // The sign and the digits of the magnitude.
    std::pair<int, Digits> normalised() const {
        for (const int sign : {1, -1}) {
            Digits digits(digits_.size());
            std::int64_t carry = 0;
            for (std::size_t at = 0; at < digits_.size(); ++at) {
                carry += sign * digits_[at];
                digits[at] = static_cast<std::uint32_t>(carry);
                carry >>= 32;
            }
            if (carry < 0) continue;  // it is negative
            while (!digits.empty() && digits.back() == 0) digits.pop_back();
            return {digits.empty() ? 0 : sign, digits};
        }
        return {0, {}};
    }

    std::vector<std::int64_t> digits_ = std::vector<std::int64_t>((2 * 1024 - LOWEST) / 32 + 8);
};

template <class Number>
double exact_mean_of(const Number* utilities, std::size_t distinct, const double* weights) {
    ExactSum sum, total;
    for (std::size_t c = 0; c < distinct; ++c) {
        sum.add(static_cast<double>(utilities[c]), weights[c]);
        total.add(1.0, weights[c]);
    }
    return sum.over(total);
}

}  // namespace

double exact_mean(const float* utilities, std::size_t distinct, const double* weights) {
    WeightedSum sum(weights, distinct);
    if (sum.is_exact(utilities)) return sum.mean(utilities);
    return exact_mean_of(utilities, distinct, weights);
}

double exact_mean(const double* utilities, std::size_t distinct, const double* weights) {
    return exact_mean_of(utilities, distinct, weights);
}

void expected_utilities(const float* utilities, std::size_t hypotheses, std::size_t distinct, const double* weights,
                        double* means) {
    WeightedSum sum(weights, distinct);
    for (std::size_t h = 0; h < hypotheses; ++h) means[h] = sum.mean(utilities + h * distinct);
}

void expected_utilities(const double* utilities, std::size_t hypotheses, std::size_t distinct, const double* weights,
                        double* means) {
    WeightedSum sum(weights, distinct);
    for (std::size_t h = 0; h < hypotheses; ++h) means[h] = sum.mean(utilities + h * distinct);
}

}  // namespace mbrace
