// The instruction sets that this machine has.
#include "count.hpp"
#include "cpu.hpp"

namespace mbrace {

const std::vector<const Variant*>& variants() {
    static const std::vector<const Variant*> available = [] {
        std::vector<const Variant*> list;
#if defined(MBRACE_X86)
        const Cpu cpu = ask_cpu();
        if (cpu.avx512) list.push_back(&avx512_variant);
        if (cpu.avx2) list.push_back(&avx2_variant);
#elif defined(MBRACE_ARM)
        list.push_back(&neon_variant);
#endif
        list.push_back(&portable_variant);
        return list;
    }();
    return available;
}

}  // namespace mbrace
