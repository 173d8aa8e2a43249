// PTX of Hopper (sm_90a) as small inline functions: wgmma, mbarrier, TMA, named barriers, a few conversions.
// No host header and no library: NVRTC and nvcc both compile it as it stands.
#pragma once

using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;

struct alignas(64) TensorMap { uint8_t bytes[128]; };   // the bytes of a CUtensorMap

// ------------------------------------------------------------------------------------------ wgmma
// A wgmma names every accumulator register in its text: %0 ... %n-1, then its other operands.
#define REGS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGS_32 REGS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGS_40 REGS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define REGS_64 REGS_40 ",%40,%41,%42,%43,%44,%45,%46,%47" \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REGS_128 REGS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define OUT_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                    "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define OUT_32(d) OUT_8(d, 0), OUT_8(d, 8), OUT_8(d, 16), OUT_8(d, 24)
#define OUT_40(d) OUT_32(d), OUT_8(d, 32)
#define OUT_64(d) OUT_40(d), OUT_8(d, 40), OUT_8(d, 48), OUT_8(d, 56)
#define OUT_128(d) OUT_64(d), OUT_8(d, 64), OUT_8(d, 72), OUT_8(d, 80), OUT_8(d, 88), \
                   OUT_8(d, 96), OUT_8(d, 104), OUT_8(d, 112), OUT_8(d, 120)

// Shared-memory descriptor of a 128-byte swizzled operand. Its high half never changes here: 1024 bytes from one group
// of 8 rows to the next. The low half holds address / 16 and, for a transposed operand, the distance of its panels of
// 64 columns / 16, so that stepping through a tile is one 32-bit add; a 64-bit one costs the uniform pipe three.
#define DESC_HIGH "0x40000040"
__device__ __forceinline__ uint32_t desc_low(uint32_t addr, uint32_t panel_bytes) {
  return (addr >> 4) | ((panel_bytes >> 4) << 16);
}

// S[64, N] (+)= Q[64, 16] K[N, 16]^T, both operands in shared memory, columns contiguous
template <int N> struct QK;
#define DEFINE_QK(N, NREGS, A, B, P)                                                              \
  template <> struct QK<N> {                                                                      \
    static __device__ __forceinline__ void mma(float (&d)[NREGS], uint32_t a, uint32_t b, int acc) { \
      asm volatile("{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, " P ", 0;\n"                  \
                   "mov.b64 da, {" A ", " DESC_HIGH "}; mov.b64 db, {" B ", " DESC_HIGH "};\n"    \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" REGS_##NREGS "}, "  \
                   "da, db, p, 1, 1, 0, 0;}\n" : OUT_##NREGS(d) : "r"(a), "r"(b), "r"(acc));      \
    }                                                                                             \
  };
DEFINE_QK(64, 32, "%32", "%33", "%34")
DEFINE_QK(80, 40, "%40", "%41", "%42")
DEFINE_QK(128, 64, "%64", "%65", "%66")

// S[64, N] (+)= Q[64, 16] K[N, 16]^T, Q in registers, so that an SM's products read fewer bytes from shared memory
template <int N> struct QKFromRegisters;
#define DEFINE_QK_FROM_REGISTERS(N, NREGS, A, B, P)                                               \
  template <> struct QKFromRegisters<N> {                                                         \
    static __device__ __forceinline__ void mma(float (&d)[NREGS], const uint32_t* a, uint32_t b, int acc) { \
      asm volatile("{.reg .pred p; .reg .b64 db; setp.ne.b32 p, " P ", 0; mov.b64 db, {" B ", " DESC_HIGH "};\n" \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" REGS_##NREGS "}, {" \
                   A "}, db, p, 1, 1, 0;}\n"                                                      \
                   : OUT_##NREGS(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(acc)); \
    }                                                                                             \
  };
DEFINE_QK_FROM_REGISTERS(64, 32, "%32,%33,%34,%35", "%36", "%37")
DEFINE_QK_FROM_REGISTERS(80, 40, "%40,%41,%42,%43", "%44", "%45")
DEFINE_QK_FROM_REGISTERS(128, 64, "%64,%65,%66,%67", "%68", "%69")

// O[64, D] += P[64, 16] V[16, D], P in registers, V in shared memory with D contiguous
template <int D> struct PV;
#define DEFINE_PV(D, NREGS, A, B)                                                                 \
  template <> struct PV<D> {                                                                      \
    static __device__ __forceinline__ void mma(float (&d)[NREGS], const uint32_t* a, uint32_t b) { \
      asm volatile("{.reg .b64 db; mov.b64 db, {" B ", " DESC_HIGH "};\n"                         \
                   "wgmma.mma_async.sync.aligned.m64n" #D "k16.f32.f16.f16 {" REGS_##NREGS "}, {" \
                   A "}, db, 1, 1, 1, 1;}\n"                                                      \
                   : OUT_##NREGS(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));        \
    }                                                                                             \
  };
DEFINE_PV(64, 32, "%32,%33,%34,%35", "%36")
DEFINE_PV(128, 64, "%64,%65,%66,%67", "%68")
DEFINE_PV(256, 128, "%128,%129,%130,%131", "%132")

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}
// Tells the compiler that an asynchronous wgmma wrote (or read) these registers up to here.
template <int n> __device__ __forceinline__ void touch(float (&r)[n]) {
#pragma unroll
  for (int i = 0; i < n; i++) asm volatile("" : "+f"(r[i])::"memory");
}
template <int n> __device__ __forceinline__ void touch(uint32_t (&r)[n]) {
#pragma unroll
  for (int i = 0; i < n; i++) asm volatile("" : "+r"(r[i])::"memory");
}

// ------------------------------------------------------------------------- mbarriers, TMA, barriers
__device__ __forceinline__ void mbar_init(uint32_t bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(bar), "r"(arrivals));
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
  asm volatile("{.reg .pred P; WAITING: mbarrier.try_wait.parity.shared::cta.b64 P,[%0],%1; "
               "@P bra.uni READY; bra.uni WAITING; READY:}" ::"r"(bar), "r"(parity) : "memory");
}
// '_if': done by the lanes whose 'on' is set, through a predicate inside the asm. No branch, so no basic-block boundary
// in the caller, and the producer warp stays within its 24 registers (if it does not, ptxas serialises the consumers'
// wgmma).
__device__ __forceinline__ void mbar_arrive_if(uint32_t bar, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%1,0; @p mbarrier.arrive.shared::cta.b64 _,[%0];}"
               ::"r"(bar), "r"(on) : "memory");
}
__device__ __forceinline__ void mbar_expect_if(uint32_t bar, int bytes, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%2,0; @p mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;}"
               ::"r"(bar), "r"(bytes), "r"(on) : "memory");
}
// One box of a [heads, rows, columns] tensor into shared memory; rows outside the head arrive as zeros.
__device__ __forceinline__ void tma_load_if(uint32_t dst, const TensorMap* map, int col, int row, int head,
                                            uint32_t bar, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%6,0; "
               "@p cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0],[%1,{%2,%3,%4}],[%5];}"
               ::"r"(dst), "l"(map), "r"(col), "r"(row), "r"(head), "r"(bar), "r"(on) : "memory");
}
__device__ __forceinline__ void named_sync(int id) { asm volatile("bar.sync %0,256;" ::"r"(id) : "memory"); }
__device__ __forceinline__ void named_arrive(int id) { asm volatile("bar.arrive %0,256;" ::"r"(id) : "memory"); }
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --------------------------------------------------------------------------------- small arithmetic
__device__ __forceinline__ float exp2_approx(float x) {
  float y; asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x)); return y;
}
__device__ __forceinline__ float rcp_approx(float x) {
  float y; asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x)); return y;
}
// 1 / x; NaN, not zero, where that is below the smallest normal number
__device__ __forceinline__ float rcp_or_nan(float x) {
  return x < 0x1p126f ? rcp_approx(x) : __int_as_float(0x7fc00000);
}
__device__ __forceinline__ float log2_approx(float x) {
  float y; asm("lg2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x)); return y;
}
__device__ __forceinline__ uint32_t pack_half2(float lo, float hi) {
  uint32_t r; asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(hi), "f"(lo)); return r;
}
// what pack_half2 rounds away, as two halves
__device__ __forceinline__ uint32_t pack_rest(float lo, float hi) {
  float a, b;
  asm("{.reg .f16 x; cvt.rn.f16.f32 x,%2; cvt.f32.f16 %0,x; cvt.rn.f16.f32 x,%3; cvt.f32.f16 %1,x;}"
      : "=f"(a), "=f"(b) : "f"(lo), "f"(hi));
  return pack_half2(lo - a, hi - b);
}
__device__ __forceinline__ uint32_t smem_u32(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
// Lane 0 reads a word of shared memory for its warp. When no other lane touches the word, lane 0's arrival on the
// mbarrier that hands it back comes after every read of it in lane 0's own program order: nothing rests on what a
// __syncwarp orders.
__device__ __forceinline__ int lds_lane0(uint32_t addr, int lane0) {
  int v = 0;
  if (lane0) asm volatile("ld.shared.b32 %0,[%1];" : "=r"(v) : "r"(addr) : "memory");
  return __shfl_sync(~0u, v, 0);
}
__device__ __forceinline__ void sts_if(uint32_t addr, int v, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%2,0; @p st.shared.b32 [%0],%1;}"
               ::"r"(addr), "r"(v), "r"(on) : "memory");
}
// four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8
__device__ __forceinline__ void ldmatrix_x4(uint32_t* r, uint32_t row_smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row_smem) : "memory");
}
// next = (*counter)++ where 'on'; elsewhere next stays
__device__ __forceinline__ void atomic_next_if(int& next, int* counter, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%2,0; @p atom.global.add.u32 %0,[%1],1;}"
               : "+r"(next) : "l"(counter), "r"(on) : "memory");
}
// 4 x 4 transpose within each quad of lanes: afterwards x[i] is what lane i of the quad held as x[this lane]
__device__ __forceinline__ void transpose_quad(uint32_t (&x)[4], int lane) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int a = step == 1 ? 2 * k : k, b = a + step;
      const uint32_t got = __shfl_xor_sync(~0u, lane & step ? x[a] : x[b], step);
      if (lane & step) x[a] = got; else x[b] = got;
    }
  }
}
