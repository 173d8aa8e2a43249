// PTX of Hopper (sm_90a) as small inline functions: wgmma, mbarrier, TMA, bulk reduction, ldmatrix and stmatrix, barriers.
// No host header and no library: NVRTC and nvcc both compile it as it stands. All inline assembly of this submission is in this
// file, so that tests/submissions/hopper_on_cpu/sm90.cuh, its twin with the same names, can run the kernels on a CPU.
#pragma once

using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;

struct alignas(64) TensorMap { uint8_t bytes[128]; };   // the bytes of a CUtensorMap
#define SHARED_MEMORY(name) extern __shared__ __align__(1024) uint8_t name[]

// the 16-bit floats of a build: IEEE's half, or bfloat16
#ifndef BF16
#define BF16 0
#endif
#if BF16
#define HALF "bf16"
#else
#define HALF "f16"
#endif

// ------------------------------------------------------------------------------------------ wgmma
// A wgmma names every accumulator register in its text: %0 ... %n-1, then its other operands.
#define REGS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGS_32 REGS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGS_64 REGS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REGS_128 REGS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define OUT_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                    "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define OUT_16(d) OUT_8(d, 0), OUT_8(d, 8)
#define OUT_32(d) OUT_16(d), OUT_8(d, 16), OUT_8(d, 24)
#define OUT_64(d) OUT_32(d), OUT_8(d, 32), OUT_8(d, 40), OUT_8(d, 48), OUT_8(d, 56)
#define OUT_128(d) OUT_64(d), OUT_8(d, 64), OUT_8(d, 72), OUT_8(d, 80), OUT_8(d, 88), \
                   OUT_8(d, 96), OUT_8(d, 104), OUT_8(d, 112), OUT_8(d, 120)

// Shared-memory descriptor of a swizzled operand. Its high half is a constant: the kind of swizzle and the bytes from one group
// of 8 rows to the next, 1024 for rows of 128 bytes and 512 for rows of 64. The low half holds address / 16 and, for an operand
// whose rows run along the sum (transposed), the distance of its panels of 64 columns / 16.
#define DESC_HIGH "0x40000040"
#define DESC_HIGH_64B "0x80000020"
__device__ __forceinline__ uint32_t desc_low(uint32_t addr, uint32_t panel_bytes) { return (addr >> 4) | ((panel_bytes >> 4) << 16); }

// D[64, N] = (acc ? D : 0) + A[64, 16] B[16, N], A and B in shared memory. TA = 0: A is stored [64 rows][k contiguous], 1: [k rows][64
// contiguous]. TB = 0: B is stored [N rows][k contiguous], 1: [k rows][N contiguous].
template <int N, int TA, int TB, int B_ROWS = 128> struct MmaSS;   // B_ROWS: bytes of a swizzled row of B, 128 or 64
#define DEFINE_SS(N, NREGS, TA, TB, A, B, P, B_ROWS, HIGH_B)                                      \
  template <> struct MmaSS<N, TA, TB, B_ROWS> {                                                        \
    static __device__ __forceinline__ void mma(float (&d)[NREGS], uint32_t a, uint32_t b, int acc) { \
      asm volatile("{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, " P ", 0;\n"                  \
                   "mov.b64 da, {" A ", " DESC_HIGH "}; mov.b64 db, {" B ", " HIGH_B "};\n"       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." HALF "." HALF " {" REGS_##NREGS "}, "  \
                   "da, db, p, 1, 1, " #TA ", " #TB ";}\n" : OUT_##NREGS(d) : "r"(a), "r"(b), "r"(acc)); \
    }                                                                                             \
  };
DEFINE_SS(64, 32, 0, 0, "%32", "%33", "%34", 128, DESC_HIGH)
DEFINE_SS(256, 128, 1, 1, "%128", "%129", "%130", 128, DESC_HIGH)
DEFINE_SS(64, 32, 1, 1, "%32", "%33", "%34", 128, DESC_HIGH)
DEFINE_SS(32, 16, 1, 1, "%16", "%17", "%18", 64, DESC_HIGH_64B)
DEFINE_SS(32, 16, 1, 1, "%16", "%17", "%18", 128, DESC_HIGH)

// The same with A in registers: a[0..3] of a thread are rows g, g + 8, g, g + 8 (g = lane / 4 of the warp's 16) and
// columns 2 (lane % 4) + {0, 1}, the last two 8 columns further.
template <int N, int TB, int B_ROWS = 128> struct MmaRS;
#define DEFINE_RS(N, NREGS, TB, A, B, P, B_ROWS, HIGH_B)                                          \
  template <> struct MmaRS<N, TB, B_ROWS> {                                                            \
    static __device__ __forceinline__ void mma(float (&d)[NREGS], const uint32_t* a, uint32_t b, int acc) { \
      asm volatile("{.reg .pred p; .reg .b64 db; setp.ne.b32 p, " P ", 0; mov.b64 db, {" B ", " HIGH_B "};\n" \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." HALF "." HALF " {" REGS_##NREGS "}, {" \
                   A "}, db, p, 1, 1, " #TB ";}\n"                                                \
                   : OUT_##NREGS(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(acc)); \
    }                                                                                             \
  };
DEFINE_RS(32, 16, 1, "%16,%17,%18,%19", "%20", "%21", 64, DESC_HIGH_64B)
DEFINE_RS(32, 16, 1, "%16,%17,%18,%19", "%20", "%21", 128, DESC_HIGH)
DEFINE_RS(64, 32, 0, "%32,%33,%34,%35", "%36", "%37", 128, DESC_HIGH)
DEFINE_RS(64, 32, 1, "%32,%33,%34,%35", "%36", "%37", 128, DESC_HIGH)
DEFINE_RS(128, 64, 1, "%64,%65,%66,%67", "%68", "%69", 128, DESC_HIGH)
DEFINE_RS(256, 128, 1, "%128,%129,%130,%131", "%132", "%133", 128, DESC_HIGH)

// D[64, 64] += 2 sum over k of a[k] b[n][k], the same in every row: bfloat16s whatever the build's, a [8 rows alike, 8] and b [64, 8] in shared
// memory, not swizzled, rows of 16 bytes one behind the other. The instruction's 16 k are these 8 twice.
struct MmaColumns {
  static __device__ __forceinline__ void mma(float (&d)[32], uint32_t a, uint32_t b) {
    asm volatile("{.reg .b64 da, db; .reg .pred p; setp.ne.b32 p, %34, 0; mov.b64 da, {%32, 0}; mov.b64 db, {%33, 8};\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGS_32 "}, da, db, p, 1, 1, 0, 0;}\n"
                 : OUT_32(d) : "r"(a >> 4), "r"(b >> 4), "r"(1));
  }
};
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
__device__ __forceinline__ void mbar_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Returns when the phase of this parity is complete; a barrier starts as if the phase of parity 1 were.
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
  asm volatile("{.reg .pred P; WAITING: mbarrier.try_wait.parity.shared::cta.b64 P,[%0],%1; @P bra.uni READY; bra.uni WAITING; READY:}" ::"r"(bar), "r"(parity) : "memory");
}
// Whether it is, without waiting.
__device__ __forceinline__ int mbar_test(uint32_t bar, uint32_t parity) {
  int there;
  asm volatile("{.reg .pred P; mbarrier.test_wait.parity.shared::cta.b64 P,[%1],%2; selp.s32 %0,1,0,P;}" : "=r"(there) : "r"(bar), "r"(parity) : "memory");
  return there;
}
// '_if': done by the lanes whose 'on' is set, through a predicate inside the asm. No branch, so no basic-block boundary
// in the caller, and the producer warp stays within its 24 registers (if it does not, ptxas serialises the consumers' wgmma).
__device__ __forceinline__ void mbar_arrive_if(uint32_t bar, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%1,0; @p mbarrier.arrive.shared::cta.b64 _,[%0];}" ::"r"(bar), "r"(on) : "memory");
}
__device__ __forceinline__ void mbar_expect_if(uint32_t bar, int bytes, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%2,0; @p mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;}" ::"r"(bar), "r"(bytes), "r"(on) : "memory");
}
// One box of a [heads, rows, columns] tensor into shared memory; rows outside the head arrive as zeros.
__device__ __forceinline__ void tma_load_if(uint32_t dst, const TensorMap* map, int col, int row, int head, uint32_t bar, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%6,0; @p cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3,%4}],[%5];}"
               ::"r"(dst), "l"(map), "r"(col), "r"(row), "r"(head), "r"(bar), "r"(on) : "memory");
}
// The same of a [batch, heads, rows, columns] tensor, whose batches and heads may lie anywhere.
__device__ __forceinline__ void tma_load_4d_if(uint32_t dst, const TensorMap* map, int col, int row, int head, int batch, uint32_t bar, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%7,0; @p cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3,%4,%5}],[%6];}"
               ::"r"(dst), "l"(map), "r"(col), "r"(row), "r"(head), "r"(batch), "r"(bar), "r"(on) : "memory");
}
// A run of bytes (a multiple of 16, 16-byte aligned) into shared memory.
__device__ __forceinline__ void bulk_load_if(uint32_t dst, const void* src, int bytes, uint32_t bar, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%4,0; @p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];}"
               ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "r"(on) : "memory");
}
// memory[i] += shared[i] for a run of floats, as one asynchronous operation of this thread
__device__ __forceinline__ void bulk_add_if(float* dst, uint32_t src, int bytes, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%3,0; @p cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0],[%1],%2;}"
               ::"l"(dst), "r"(src), "r"(bytes), "r"(on) : "memory");
}
// The same without the sum.
__device__ __forceinline__ void bulk_store_if(float* dst, uint32_t src, int bytes, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%3,0; @p cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;}"
               ::"l"(dst), "r"(src), "r"(bytes), "r"(on) : "memory");
}
// memory[0 ... 3] += a ... d, by the L2, no answer; 16-byte aligned
__device__ __forceinline__ void red_add_float4(float* dst, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0],{%1,%2,%3,%4};" ::"l"(dst), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
// A counter in global memory by which blocks of one grid wait for each other. Added to by one thread after a barrier of its block or
// warp: who waited for the count sees what those threads wrote or reduced before.
__device__ __forceinline__ void counter_add(uint32_t* counter, int count) {
  asm volatile("fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%0],%1;" ::"l"(counter), "r"(count) : "memory");
}
__device__ __forceinline__ void counter_add_fenced_if(uint32_t* counter, int count, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%2,0; @p fence.acq_rel.gpu; @p red.relaxed.gpu.global.add.u32 [%0],%1;}"
               ::"l"(counter), "r"(count), "r"(on) : "memory");
}
__device__ __forceinline__ void counter_wait(const uint32_t* counter, int count) {
  asm volatile("{.reg .pred P; .reg .u32 x; WAITING: ld.acquire.gpu.global.u32 x,[%0]; setp.lo.u32 P,x,%1; @P bra WAITING;}" ::"l"(counter), "r"(count) : "memory");
}
// What a counter was before one was added, if on.
__device__ __forceinline__ uint32_t counter_take_if(uint32_t* counter, int on) {
  uint32_t x;
  asm volatile("{.reg .pred p; setp.ne.b32 p,%2,0; mov.u32 %0,0; @p atom.relaxed.gpu.global.add.u32 %0,[%1],1;}"
               : "=r"(x) : "l"(counter), "r"(on) : "memory");
  return x;
}
// The same between two barriers of a block: after it the block sees what those that counted before it had written.
__device__ __forceinline__ uint32_t counter_take_fenced_if(uint32_t* counter, int on) {
  uint32_t x;
  asm volatile("{.reg .pred p; setp.ne.b32 p,%2,0; mov.u32 %0,0; @p fence.acq_rel.gpu;\n"
               "@p atom.relaxed.gpu.global.add.u32 %0,[%1],1; @p fence.acq_rel.gpu;}"
               : "=r"(x) : "l"(counter), "r"(on) : "memory");
  return x;
}
// global memory that this block's loads by TMA or bulk copies will read was written by other blocks
__device__ __forceinline__ void proxy_fence_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }  // the sources may be overwritten
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }            // the sums are done
__device__ __forceinline__ void bar_sync(int id, int threads) { asm volatile("bar.sync %0,%1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
template <int N> __device__ __forceinline__ void regs_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> __device__ __forceinline__ void regs_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// ------------------------------------------------------------------ shared memory, 8 x 8 matrices
// Matrix m of four (16-byte rows at the addresses of lanes 8 m ... 8 m + 7): lane l holds row l / 4, columns 2 (l % 4) + {0, 1} in x[m].
__device__ __forceinline__ void store_matrices(uint32_t addr, const uint32_t* x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(addr), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t* x, uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(addr) : "memory");
}
// transposed: lane l holds column l / 4, rows 2 (l % 4) + {0, 1}
__device__ __forceinline__ void load_matrices_transposed(uint32_t* x, uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(addr) : "memory");
}
__device__ __forceinline__ float lds_float(uint32_t addr) {
  float x; asm volatile("ld.shared.f32 %0,[%1];" : "=f"(x) : "r"(addr) : "memory"); return x;
}
__device__ __forceinline__ float2 lds_float2(uint32_t addr) {
  float2 v; asm volatile("ld.shared.v2.f32 {%0,%1},[%2];" : "=f"(v.x), "=f"(v.y) : "r"(addr) : "memory"); return v;
}
__device__ __forceinline__ float4 lds_float4(uint32_t addr) {
  float4 v; asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(addr) : "memory"); return v;
}
__device__ __forceinline__ void sts_float4(uint32_t addr, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(addr), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
__device__ __forceinline__ void sts_words(uint32_t addr, const uint32_t* x) {
  asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(addr), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
__device__ __forceinline__ void lds_words(uint32_t* x, uint32_t addr) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3},[%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(addr) : "memory");
}

__device__ __forceinline__ void sts_word_if(uint32_t addr, uint32_t x, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%2,0; @p st.shared.u32 [%0],%1;}" ::"r"(addr), "r"(x), "r"(on) : "memory");
}
// A count in shared memory that one warp raises and others wait for.
__device__ __forceinline__ void count_up_if(uint32_t addr, uint32_t count, int on) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%2,0; @p st.release.cta.shared.u32 [%0],%1;}"
               ::"r"(addr), "r"(count), "r"(on) : "memory");
}
__device__ __forceinline__ void count_wait(uint32_t addr, uint32_t count) {
  asm volatile("{.reg .pred P; .reg .u32 x; WAITING: ld.acquire.cta.shared.u32 x,[%0]; setp.lo.u32 P,x,%1; "
               "@P bra WAITING;}" ::"r"(addr), "r"(count) : "memory");
}
__device__ __forceinline__ uint32_t lds_word(uint32_t addr) {
  uint32_t x; asm volatile("ld.shared.u32 %0,[%1];" : "=r"(x) : "r"(addr) : "memory"); return x;
}

// --------------------------------------------------------------------------------- small arithmetic
__device__ __forceinline__ float exp2_approx(float x) { float y; asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ uint32_t pack_half2(float lo, float hi) {
  uint32_t r; asm("cvt.rn." HALF "x2.f32 %0,%1,%2;" : "=r"(r) : "f"(hi), "f"(lo)); return r;
}
__device__ __forceinline__ float2 unpack_half2(uint32_t x) {
  if (BF16) return make_float2(__int_as_float((int)(x << 16)), __int_as_float((int)(x & 0xffff0000u)));
  float2 v; asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi;}" : "=f"(v.x), "=f"(v.y) : "r"(x)); return v;
}
__device__ __forceinline__ uint32_t float_bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float bits_float(uint32_t x) { return __uint_as_float(x); }
__device__ __forceinline__ uint32_t smem_u32(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
// threadIdx.x % 32, read anew: nothing of it is kept in a register until then
__device__ __forceinline__ int lane_now() { int lane; asm volatile("mov.u32 %0,%%laneid;" : "=r"(lane)); return lane; }
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
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
