// What this machine's processor supports: by the builtins of GCC and Clang, or by asking it where there are none.
#pragma once

#include <cstdint>

#if defined(_WIN32) && (defined(__x86_64__) || defined(_M_X64))
// The builtins need a part of the compiler's runtime that is not linked on Windows.
#include <intrin.h>
#define MBRACE_ASKS_CPU
#endif

namespace mbrace {

struct Cpu {
    bool avx2 = false;
    bool avx512 = false;       // f, dq, vl and bw
    bool avx512_vnni = false;  // bw and vnni
};

#if defined(MBRACE_ASKS_CPU)
// XCR0, the registers that the operating system saves. In assembly, because the intrinsic would need a compiler flag.
inline std::uint64_t saved_registers() {
#if defined(__GNUC__) || defined(__clang__)
    std::uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<std::uint64_t>(high) << 32 | low;
#else
    return _xgetbv(0);
#endif
}

inline Cpu ask_cpu() {
    int basic[4], extended[4];
    __cpuid(basic, 0);
    Cpu cpu;
    if (basic[0] < 7) return cpu;
    __cpuid(basic, 1);
    constexpr int OSXSAVE = 1 << 27;
    if (!(basic[2] & OSXSAVE)) return cpu;
    const std::uint64_t saved = saved_registers();
    __cpuidex(extended, 7, 0);
    const auto has = [&](int word, int bit) { return (extended[word] >> bit & 1) != 0; };
    const bool ymm = (saved & 0x06) == 0x06, zmm = (saved & 0xE6) == 0xE6;
    const bool bw = zmm && has(1, 16) && has(1, 30);  // f, bw
    cpu.avx2 = ymm && has(1, 5);
    cpu.avx512 = bw && has(1, 17) && has(1, 31);  // dq, vl
    cpu.avx512_vnni = bw && has(2, 11);
    return cpu;
}
#elif defined(__x86_64__)
inline Cpu ask_cpu() {
    __builtin_cpu_init();
    Cpu cpu;
    cpu.avx2 = __builtin_cpu_supports("avx2");
    const bool bw = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    cpu.avx512 = bw && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    cpu.avx512_vnni = bw && __builtin_cpu_supports("avx512vnni");
    return cpu;
}
#else
inline Cpu ask_cpu() { return {}; }
#endif

}  // namespace mbrace
