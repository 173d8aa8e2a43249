"""System calls by name and number, and what the walls answer to each. Data, nothing else.

    ALLOWED    done
    PRETENDED  answered with success and not done: compilers and linkers set modes and times of
               their output, and nobody here needs either; of sockets' options filters and larger
               buffers are memory of the kernel, which no process has mapped; so is where a file in
               memory wants its pages, and what is kept of a file that others will load
    ABSENT     answered as by an older kernel, so that the caller takes the older way; also
               sendfile, which holds a page for each byte that it sends, and counts the byte, and
               pidfd_send_signal, which names a descriptor: no filter knows whose it is
    NOT_KEPT   extended attributes: answered as by a file system that has none
    JUDGED     their arguments decide (harness/process/sandbox/seccomp.py)

All others are refused. A number is that of x86_64, then of aarch64, `-` where there is none.
Measured with benchmarks/system_calls.py on PyTorch, Triton, NVRTC, nvcc, g++, ld, ninja and CUDA's
driver.
"""

Numbers = tuple[int | None, int | None]


def _table(text: str) -> dict[str, Numbers]:
    found = {}
    for word in text.split():
        name, *numbers = word.split(":")
        first, second = (None if number == "-" else int(number) for number in numbers)
        found[name] = (first, second)
    return found


ALLOWED = _table(
    # files, as far as Landlock, the root folder and the user's rights let them
    """
    read:0:63 write:1:64 close:3:57 stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291
    lseek:8:62 pread64:17:67 pwrite64:18:68 readv:19:65 writev:20:66 preadv:295:69 pwritev:296:70
    preadv2:327:286 pwritev2:328:287 access:21:- faccessat:269:48 faccessat2:439:439 pipe:22:-
    pipe2:293:59 dup:32:23 dup2:33:- dup3:292:24 copy_file_range:326:285 fsync:74:82
    fdatasync:75:83 sync_file_range:277:84 ftruncate:77:46 getdents:78:- getdents64:217:61
    getcwd:79:17 chdir:80:49 fchdir:81:50 rename:82:- renameat:264:38 renameat2:316:276 mkdir:83:-
    mkdirat:258:34 rmdir:84:- link:86:- linkat:265:37 unlink:87:- unlinkat:263:35 symlink:88:-
    symlinkat:266:36 readlink:89:- readlinkat:267:78 umask:95:166 statfs:137:43 fstatfs:138:44
    flock:73:32 readahead:187:213
    """
    # memory of its own
    """
    mmap:9:222 mprotect:10:226 munmap:11:215 mremap:25:216 brk:12:214 msync:26:227
    mlock:149:228 mlock2:325:284 munlock:150:229 mlockall:151:230
    munlockall:152:231 get_mempolicy:239:236 set_mempolicy:238:237
    pkey_mprotect:329:288 pkey_alloc:330:289 pkey_free:331:290 membarrier:324:283
    """
    # waiting and time
    """
    poll:7:- ppoll:271:73 select:23:- pselect6:270:72 epoll_create:213:- epoll_create1:291:20
    epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:-
    eventfd2:290:19 timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87
    signalfd:282:- signalfd4:289:74 nanosleep:35:101 clock_nanosleep:230:115 clock_gettime:228:113
    clock_getres:229:114 gettimeofday:96:169 time:201:- alarm:37:- getitimer:36:102
    setitimer:38:103 futex:202:98 futex_waitv:449:449 set_robust_list:273:99 get_robust_list:274:100
    """
    # processes of its own, and facts about itself
    """
    fork:57:- vfork:58:- execve:59:221 execveat:322:281 exit:60:93 exit_group:231:94 wait4:61:260
    waitid:247:95 getpid:39:172 getppid:110:173 gettid:186:178 getpgrp:111:- getpgid:121:155
    setpgid:109:154 getsid:124:156 setsid:112:157 pidfd_open:434:434 set_tid_address:218:96
    rseq:334:293 arch_prctl:158:- restart_syscall:219:128 pause:34:- getuid:102:174
    geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150
    getgroups:115:158 capget:125:90 getrusage:98:165 times:100:153 sysinfo:99:179 uname:63:160
    getcpu:309:168 getrandom:318:278 getrlimit:97:163 getpriority:140:141
    ioprio_get:252:31 sched_yield:24:124 sched_getaffinity:204:123 sched_getscheduler:145:120
    sched_getparam:143:121 sched_getattr:315:275 sched_get_priority_max:146:125
    sched_get_priority_min:147:126 sched_rr_get_interval:148:127 rt_sigaction:13:134
    rt_sigprocmask:14:135 rt_sigpending:127:136 rt_sigtimedwait:128:137 rt_sigsuspend:130:133
    rt_sigreturn:15:139 sigaltstack:131:132
    """
    # sockets, once `socket` let one be made
    """
    bind:49:200 listen:50:201 accept:43:202 accept4:288:242 getsockname:51:204
    getpeername:52:205 sendto:44:206 recvfrom:45:207 recvmsg:47:212 recvmmsg:299:243
    shutdown:48:210 getsockopt:55:209
    """
    # Not among them: sendmsg and sendmmsg. Behind their pointer may lie descriptors, and a file
    # whose last descriptor is on its way is in no list of /proc, however much of a disk it holds.
)
PRETENDED = _table(
    """
    chmod:90:- fchmod:91:52 fchmodat:268:53 utime:132:- utimes:235:- futimesat:261:-
    utimensat:280:88 sync:162:81 syncfs:306:267 setsockopt:54:208 mbind:237:235
    fadvise64:221:223
    """
)
ABSENT = _table(
    """
    clone3:435:435 openat2:437:437 io_uring_setup:425:425 memfd_create:319:279
    timer_create:222:107 sendfile:40:71 pidfd_send_signal:424:424
    """
)
NOT_KEPT = _table(
    """
    getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10 listxattr:194:11 llistxattr:195:12
    flistxattr:196:13
    """
)
#: What the arguments of each may be is said in harness/process/sandbox/seccomp.py.
JUDGED = _table(
    """
    open:2:- openat:257:56 creat:85:- mknod:133:- mknodat:259:33 socket:41:198 socketpair:53:199
    connect:42:203 clone:56:220 ioctl:16:29 fcntl:72:25 prctl:157:167 setpriority:141:140
    prlimit64:302:261 fallocate:285:47 sched_setscheduler:144:119 sched_setparam:142:118
    sched_setattr:314:274 sched_setaffinity:203:122 kill:62:129 tkill:200:130 tgkill:234:131
    rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 close_range:436:436 truncate:76:45
    madvise:28:233 setrlimit:160:164 mincore:27:232
    """
)
#: From here on all numbers are newer than these tables: ABSENT.
NEWER_FROM = 450
