//! Which buffers an instruction reads and writes: all that lifetimes, places and checks know of it.

use super::super::Buf;
use super::{Access, Embedded, Grad, HeadBehind, Instr, LoraAdd};

impl Instr {
    /// Calls `see` for every buffer the instruction uses.
    pub fn buffers(&self, see: &mut dyn FnMut(Buf, Access)) {
        use Access::{Read, Update, Write};
        let target =
            |see: &mut dyn FnMut(Buf, Access), (buf, add): (Buf, bool)| see(buf, if add { Update } else { Write });
        let grad = |see: &mut dyn FnMut(Buf, Access), grad: Grad| {
            if let Grad::Once(buf) = grad {
                see(buf, Write);
            }
        };
        match *self {
            Instr::Embed { out, scratch, .. } => {
                see(out, Write);
                scratch.into_iter().for_each(|scratch| see(scratch, Write));
            }
            Instr::EmbedBackward { g, grads, scratch, .. } => {
                see(g, Read);
                grads.into_iter().for_each(|of| grad(see, of));
                see(scratch, Write);
            }
            Instr::Norm { x, out, moved, .. } => {
                see(x, Read);
                see(out, Write);
                moved.into_iter().for_each(|moved| see(moved, Write));
            }
            Instr::NormBackward { x, g, gx, .. } => {
                see(x, Read);
                see(g, Read);
                target(see, gx);
            }
            Instr::Normalise { x, out, rstd, .. } => {
                see(x, Read);
                see(out, Write);
                see(rstd, Write);
            }
            Instr::Affine { n, out, .. } => {
                see(n, Read);
                see(out, Write);
            }
            Instr::SharedNormBackward { n, rstd, g, gx, .. } => {
                [n, rstd, g].into_iter().for_each(|buf| see(buf, Read));
                target(see, gx);
            }
            Instr::LoraDown { x, h, scratch, .. } => {
                see(x, Read);
                see(h, Write);
                see(scratch, Write);
            }
            Instr::Dropout { x, out, .. } => {
                see(x, Read);
                see(out, Write);
            }
            Instr::DropoutBackward { g, gx, .. } => {
                see(g, Read);
                target(see, gx);
            }
            Instr::Lengths { scratch, .. } => see(scratch, Write),
            Instr::Magnitude { z, out, .. } => {
                see(z, Read);
                see(out, Write);
            }
            Instr::MagnitudeBackward { z, g, gz, gm, .. } => {
                see(z, Read);
                see(g, Read);
                target(see, gz);
                grad(see, gm);
            }
            Instr::LoraDownBackward { gh, gx, ga, scratch, .. } => {
                see(gh, Read);
                if let Some(gx) = gx {
                    target(see, gx);
                }
                if let Some((x, ga)) = ga {
                    see(x, Read);
                    grad(see, ga);
                }
                see(scratch, Write);
            }
            Instr::Linear { lora, x, out, scratch, more, .. } => {
                see(x, Read);
                if let Some(LoraAdd { h, down, .. }) = lora {
                    see(h, if down.is_some() { Write } else { Read });
                }
                see(out, Write);
                see(scratch, if more { Update } else { Write });
            }
            Instr::LinearBackward { g, gx, lora, scratch, .. } => {
                see(g, Read);
                if let Some(gx) = gx {
                    target(see, gx);
                }
                if let Some(lora) = lora {
                    see(lora.h, Read);
                    lora.gh.into_iter().for_each(|gh| see(gh, Write));
                    grad(see, lora.gb);
                }
                see(scratch, Write);
            }
            Instr::VeraDown { x, h, scratch, .. } => {
                see(x, Read);
                see(h, Write);
                see(scratch, Write);
            }
            Instr::VeraDownBackward { gh, gx, scratch, .. } => {
                see(gh, Read);
                target(see, gx);
                see(scratch, Write);
            }
            Instr::VeraUp { h, y, scratch, .. } => {
                see(h, Read);
                see(y, Update);
                see(scratch, Write);
            }
            Instr::VeraUpBackward { h, g, gh, grads, scratch, .. } => {
                see(h, Read);
                see(g, Read);
                gh.into_iter().for_each(|gh| see(gh, Write));
                grads.into_iter().for_each(|of| grad(see, of));
                see(scratch, Write);
            }
            Instr::Rope { x, .. } => see(x, Update),
            Instr::Attention { q, k, v, out, lse, scratch, .. }
            | Instr::CachedAttention { q, k, v, out, lse, scratch, .. } => {
                [q, k, v].into_iter().for_each(|buf| see(buf, Read));
                [out, lse, scratch].into_iter().for_each(|buf| see(buf, Write));
            }
            Instr::AttentionBackward { read, write, scratch, .. } => {
                read.into_iter().for_each(|buf| see(buf, Read));
                write.into_iter().chain([scratch]).for_each(|buf| see(buf, Write));
            }
            Instr::Gated { gate, up, out, .. } => {
                see(gate, Read);
                see(up, Read);
                see(out, Write);
            }
            Instr::GatedBackward { gate, up, g, .. } => {
                see(gate, Update);
                see(up, Update);
                see(g, Read);
            }
            Instr::Activation { x, out, levels, .. } => {
                see(x, if out.is_some() { Read } else { Update });
                out.into_iter().chain(levels.map(|(_, levels)| levels)).for_each(|buf| see(buf, Write));
            }
            Instr::LevelsBackward { levels, g, .. } => {
                see(levels, Read);
                see(g, Update);
            }
            Instr::ActivationBackward { x, g, .. } => {
                see(x, Update);
                see(g, Read);
            }
            Instr::Add { from, to } => {
                see(from, Read);
                see(to, Update);
            }
            Instr::Copy { from, to } => {
                see(from, Read);
                see(to, Write);
            }
            Instr::CrossEntropy { x, gx, lse, grads, work, .. } => {
                see(x, Read);
                gx.into_iter().chain(lse).for_each(|buf| see(buf, Write));
                grads.into_iter().flatten().for_each(|of| grad(see, of));
                see(work, Write);
            }
            Instr::Classify { x, gx, grads, work, .. } => {
                see(x, Read);
                gx.into_iter().for_each(|gx| see(gx, Write));
                grads.into_iter().flatten().for_each(|of| grad(see, of));
                see(work, Write);
            }
            Instr::Logits { x, out, scratch, .. } => {
                see(x, Read);
                see(out, Write);
                see(scratch, Write);
            }
            Instr::Update { grad, state, .. } => {
                see(grad, Read);
                if let Some(state) = state {
                    see(state, Write);
                }
            }
            Instr::NormGradient { x, g, grad, .. } => {
                see(x, Read);
                see(g, Read);
                see(grad, Write);
            }
            Instr::BiasGradient { g, grad } => {
                see(g, Read);
                see(grad, Write);
            }
            Instr::Learn { x, g, work, .. } => {
                see(x, Read);
                see(g, Read);
                see(work, Write);
            }
            Instr::LearnTable { embedded, head, work, .. } => {
                embedded.into_iter().for_each(|Embedded { g, .. }| see(g, Read));
                if let Some(HeadBehind { x, lse, bias }) = head {
                    [x, lse].into_iter().for_each(|buf| see(buf, Read));
                    bias.into_iter().for_each(|(_, grad)| see(grad, Write));
                }
                see(work, Write);
            }
            Instr::Spill { from, .. } | Instr::Spilled { from } => see(from, Read),
            Instr::Fetch { to, .. } => see(to, Write),
            Instr::Fetched { to } => see(to, Update),
        }
    }
}
