"""Candidate words for prompts: common English and programming words of four, five and three letters.

Which of them are one token is found out per tokenizer (`replay.tokens`). First come those that were one token in every
vocabulary looked at when the list was made (ten, of 8k to 250k tokens), so that few counts suffice with the next.
"""

from __future__ import annotations

_FOUR = """
self name type path data file line list dict code test args exec true from with this that have what only into some
time such over back more most very just like make must even find here high kind last left long look mean move need
next open part read real same show side turn used user work year able base best body call case come date does done
down else fail form free full hand head help home hour item join less link load lock main mark mode node once pack
pair pass pick plus port post push rest root safe save seen send sent sign size sort step stop text tree unit view
wait walk week word zero byte bits bool char copy enum flag func hash heap host html http info init keys lang loop
math meta mult null pipe poll prev rows scan seek slot spec stat temp uuid wrap zone cert exit site none will your
when than then also made many each good keep know life play take well were area away book both care cost door draw
drop edge ever face fact fall fast fire five flow food foot four game girl gray half hard held hold idea inch iron
king land late live loss love mass mind miss news note page plan pull rate rich ride ring rise road rock role roll
room rule seed ship shop shot sing skin soft sole spot star talk task team term tool town vote wall wave weak wear
west wide wind wing wire wise wood yard core json logs mock pool proc prop repo span sync tags trim uint void zoom
cast cell chat chip clip club dark dead deep disk fish flat folk fund gain gate gold hall hang hero hide hill hire
hole jack lane leaf lean lung menu mile mill mine pace park rank been give much went deal felt fine goal heat lead
lost near past pure race rain said seat slow song soon stem thus tube upon lint todo undo coal cool corn fair lake
loan meal nest pain peak pole rail want noon them tell easy farm feel gone hope nine salt sand sell stay wash wife
wild opts warn blob coat cold crew dish dock drug fuel gear jury neck pile pond rush came grow hear lose sale suit
sure yaml cook crop east gift harm luck rare jump lack moon poor runs snow sold tone took trip vary vast warm wine
wish lazy desk diet earn grab hunt nose pink feet kept soil dual dust hurt lamp dose lend loud nail odds fear lens
milk slip tall tend tied till twin dawn duty hate holy joke leap mood seal seem grew knew sick soul wore sysv dirt
drum glad golf gulf jail jazz knee lawn meat palm ruin sail silk
"""
_FIVE = """
class value index array error other which first after where state under never place found point right order using
power until group begin check child clear close count drive empty enter equal event field final floor force frame
image inner input issue leave level limit local lower major match maybe month owner plain print raise range ready
round scale share shift short space speed start store style table thing title total upper visit write async await
break bytes cache catch const debug delta false files float items label lines names nodes param parse paths quote
regex reset scope slice split stack about there could think world every while again house small water since large
night light three being cover cross front grand green heart human layer learn model mouth panel paper party phone
piece plane plant press price proof quick radio river route scene score serve sheet skill sleep solid sound staff
stage stand stick stock stone storm story throw touch track train union video voice watch wheel white woman fetch
lists merge proxy query would their these still great those given often cause early earth horse logic money movie
music offer plate quiet sharp today trade usual whole whose wrong shall eight reach seven might young dream fresh
heavy metal peace prior quite sense study thank trust truth shirt south carry exact hotel paint sport steel tower
trial truck rapid pilot ocean pound sight speak spend taste teach thick treat twice waste nurse proud smile sugar
tried uncle
"""
_THREE = """
the and for not are was but all can one our out day get has how man new now old see way its let put she too use run
top bad big bit box cat cut ear end fun got key low map may net off own per pop raw row set try win add arg bin bug
def del dir err exp ext fmt idx int lib log max min mod msg num obj pad pos pre ref reg res ret rev seq src std str
sub sum sys tab tag tmp url val var web zip had her his him two who boy did say car sun yes ago air arm art bag bed
bus cup dog due far fit fly gas god hat hit hot ice ill job joy law lay led leg lie lot men nor odd pay pet pie pin
red sat sea sex six sky son tax ten tip via war why elf ops ptr req xml dad buy egg eye fat kid sit tea yet csv mix
mom dry eat few oil tie wet pkg sad usr sir guy shy
"""


def candidates() -> list[list[str]]:
    """Words by length (four, five, three letters), the most promising first; no repeats."""
    return [text.split() for text in (_FOUR, _FIVE, _THREE)]
