/* Preloaded into the guest kernel's process: the randomness that the kernel takes from its host comes from a seed.
 *
 * splitmix64 (Steele, Lea, Flood 2014) over TESTBED_SEED. Nothing in a guest is a secret.
 */
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

ssize_t getrandom(void *buffer, size_t length, unsigned int flags)
{
    static uint64_t state;
    static int seeded;
    unsigned char *out = buffer;

    (void)flags;
    if (!seeded) {
        const char *seed = getenv("TESTBED_SEED");
        state = seed ? strtoull(seed, NULL, 10) : 0;
        seeded = 1;
    }
    for (size_t i = 0; i < length; i++) {
        uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        out[i] = (unsigned char)(z ^ (z >> 31));
    }
    return (ssize_t)length;
}
